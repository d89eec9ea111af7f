"""What tests of several packages use."""

from __future__ import annotations

import sys

import pytest

from phalanx import cli


@pytest.fixture
def phalanx(monkeypatch, capsys, tmp_path):
    """Run the command in this process; returns exit status, standard output and standard error."""

    def run(*arguments: str):
        monkeypatch.setattr(sys, "argv", ["phalanx", *arguments])
        monkeypatch.chdir(tmp_path)
        status = 0
        try:
            cli.main()
        except SystemExit as done:
            status = done.code or 0
        return status, *capsys.readouterr()

    return run
