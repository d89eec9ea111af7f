"""What tests of several packages use."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import jax
import pytest

from phalanx import cli


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly() -> Iterator[None]:
    """Compile without LLVM's expensive passes, also in subprocesses: compiling dominates the time of these tests.

    Tests in other folders compile programs as users do, and so do the slow ones among `tests/test_docs.py`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", False)


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
