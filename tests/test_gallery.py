"""The gallery: each model is listed with its picture and its results, and runs to a verdict that can be used."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import jax
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

GALLERY = Path(__file__).parents[1] / "docs/gallery"
MODELS = sorted(path.stem for path in GALLERY.glob("*.py"))
INDEX = (GALLERY / "index.md").read_text()
LARGEST_PICTURE = 30_000  # bytes


def docstring(name: str) -> list[str]:
    return (ast.get_docstring(ast.parse((GALLERY / f"{name}.py").read_text())) or "").splitlines()


@pytest.fixture(autouse=True)
def as_a_user() -> Iterator[None]:
    """Let a model broadcast as it does outside of the tests, and close its pictures."""
    backend = pyplot.get_backend()
    pyplot.switch_backend("agg")
    with jax.numpy_rank_promotion("allow"):
        yield
    pyplot.close("all")
    pyplot.switch_backend(backend)


def test_the_page_lists_every_model_with_its_title_and_picture() -> None:
    listed = re.findall(r"^- \[!\[\]\(pictures/(\w+)\.png\)\]\((\w+)\.py\) \[(.+)\]\((\w+)\.py\)$", INDEX, re.MULTILINE)
    assert sorted(name for name, *_ in listed) == MODELS and len(MODELS) >= 25
    for picture, first, title, second in listed:
        assert picture == first == second and title == docstring(picture)[0].rstrip(".")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_short_and_has_a_small_picture_and_a_usable_result(name: str) -> None:
    assert len((GALLERY / f"{name}.py").read_text().splitlines()) <= 80
    assert 0 < (GALLERY / f"pictures/{name}.png").stat().st_size <= LARGEST_PICTURE
    printed = (GALLERY / f"results/{name}.txt").read_text()
    assert "Good to use" in printed or "Usable, with this in mind" in printed
    # A page states why its model is usable and not good.
    assert "Usable, with this" not in printed or "usable" in " ".join(docstring(name))


def test_a_model_runs_at_small_size() -> None:
    """This one compiles in a few seconds. The slow test runs all, at full size."""
    model = runpy.run_path(str(GALLERY / "survival.py"))
    posterior = model["run"](num_warmup=30, num_samples=30)
    figure = model["show"](posterior)
    assert isinstance(figure, Figure) and figure.axes
    assert posterior.draws and posterior.verdict().findings is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_as_it_stands_is_usable(name: str, tmp_path: Path) -> None:
    command = [sys.executable, GALLERY / f"{name}.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, env=environment())
    assert done.returncode == 0, done.stderr
    assert "Good to use" in done.stdout or "Usable, with this in mind" in done.stdout, done.stdout
    assert (tmp_path / f"{name}.png").stat().st_size > 1000


def environment() -> dict[str, str]:
    return os.environ | {"MPLBACKEND": "agg", "PYTHONPATH": str(GALLERY.parents[1] / "src")}


def test_pages_are_made_of_docstring_picture_results_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx", reason="the extra `docs` is not installed")
    monkeypatch.syspath_prepend(GALLERY.parent / "_site")
    page = import_module("gallery").page(GALLERY / "kalman.py")
    assert page.startswith("The Nile again: a Kalman filter as the likelihood\n====")
    assert "``phx.factor``" in page and "../pictures/kalman.png" in page and "../results/kalman.txt" in page
    first = int(re.findall(r":lines: (\d+)-", page)[0])
    code = (GALLERY / "kalman.py").read_text().splitlines()
    assert code[first - 1].startswith("import") and '"""' in code[first - 3]
