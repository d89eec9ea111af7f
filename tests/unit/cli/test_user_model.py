"""A model in a user's file: found by its name, and what is said when it cannot be."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from phalanx.cli.user_model import MODULE, load, naming_lines_of

TEXT = """
from dataclasses import dataclass

from beside import SCALE

sizes = [1, 2]


@dataclass
class Prior:
    scale: "float" = SCALE


def regression(x, y):
    return Prior().scale


def empty():
    pass


if __name__ == "__main__":
    raise SystemExit("the file was run as a script")
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setitem(sys.modules, MODULE, None)
    (tmp_path / "beside.py").write_text("SCALE = 2.5\n")
    (tmp_path / "models.py").write_text(TEXT)
    return tmp_path / "models.py"


def test_a_function_of_the_file_which_imports_its_neighbour(file: Path) -> None:
    assert load(f"{file}:regression")(None, None) == 2.5


def test_a_file_named_from_its_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert load("models.py:regression")(None, None) == 2.5


@pytest.mark.parametrize(
    ("name", "error", "complaint"),
    [
        ("regresion", ValueError, "has no 'regresion'. Its functions: regression, empty."),
        ("sizes", TypeError, "'sizes' is not a function but a list. Its functions: regression, empty."),
    ],
)
def test_a_name_that_is_no_model(file: Path, name: str, error: type[Exception], complaint: str) -> None:
    place = f"{file}:{name}"
    with pytest.raises(error, match=f"^{re.escape(f'model {place!r}: ')}.*{re.escape(complaint)}$"):
        load(place)


def test_a_file_without_functions(file: Path) -> None:
    file.write_text("x = 1\n")
    with pytest.raises(ValueError, match=re.escape("has no 'f'. It defines no functions.")):
        load(f"{file}:f")


@pytest.mark.parametrize("place", ["models.py", "models:f", "models.py:", "models.py:a.b", ":f", ""])
def test_a_place_of_another_form(place: str) -> None:
    message = f"model {place!r}: expected FILE.py:NAME, such as models.py:regression."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        load(place)


def test_no_such_file(tmp_path: Path) -> None:
    message = f"{tmp_path / 'gone.py'} cannot be read: it does not exist in {tmp_path}."
    with pytest.raises(FileNotFoundError, match=f"{re.escape(message)}$"):
        load(f"{tmp_path / 'gone.py'}:f")
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(FileNotFoundError, match="it is a folder"):
        load(f"{tmp_path / 'folder.py'}:f")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = 1\ny = z\n", "line 2: NameError: name 'z' is not defined"),
        ("def f(:\n    pass\n", "line 1: SyntaxError: invalid syntax"),
        ("\n\nimport no_such_module_anywhere\n", "line 3: ModuleNotFoundError: No module named"),
        ("def g():\n    raise KeyError\ng()\n", "line 2: KeyError: "),
    ],
)
def test_a_file_that_fails(file: Path, text: str, complaint: str) -> None:
    file.write_text(text)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{file}, {complaint}')}"):
        load(f"{file}:f")


def test_an_error_from_elsewhere_is_left_alone(file: Path) -> None:
    with pytest.raises(ZeroDivisionError), naming_lines_of(file):
        1 / 0  # noqa: B018  # pyright: ignore[reportUnusedExpression]
