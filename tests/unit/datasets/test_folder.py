"""How the folder of data files is found, and what is said when it is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phalanx.datasets.folder import find_folder

HOW = "Get the files from somewhere, and pass their folder or set PHALANX_DATA to it."


def test_the_argument_goes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, named = tmp_path / "given", tmp_path / "named"
    given.mkdir()
    named.mkdir()
    monkeypatch.setenv("PHALANX_DATA", str(named))
    assert find_folder("mnist", given, "somewhere") == given
    assert find_folder("mnist", None, "somewhere") == named


def test_a_folder_of_data_sets_is_entered(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    assert find_folder("mnist", tmp_path, "somewhere") == tmp_path / "mnist"
    assert find_folder("mnist", str(tmp_path / "mnist"), "somewhere") == tmp_path / "mnist"


def test_no_folder_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    message = f"mnist: no folder was given, and the environment variable PHALANX_DATA is not set. {HOW}"
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        find_folder("mnist", None, "somewhere")


def test_the_folder_given_is_not_there(tmp_path: Path) -> None:
    message = f"mnist: the folder given, {tmp_path / 'gone'}, does not exist. {HOW}"
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        find_folder("mnist", tmp_path / "gone", "somewhere")


def test_the_folder_of_the_variable_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PHALANX_DATA", str(tmp_path / "file"))
    message = f"mnist: the folder that PHALANX_DATA names, {tmp_path / 'file'}, is not a folder. {HOW}"
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        find_folder("mnist", None, "somewhere")
