import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phalanx.cli import app
from phalanx.extras import DISTRIBUTIONS, install_command, is_installed, require

ROOT = Path(__file__).parents[2]
TOOLS = ("docs", "release")
"""Extras that no module of the package asks for."""


def test_installed_extras_are_imported():
    assert require("json.decoder").JSONDecoder and is_installed("json")


@pytest.mark.parametrize("module", ["no_such_package_1", "no_such_package_1.part"])
def test_missing_extras_say_how_to_install_them(module):
    message = r"^no_such_package_1 is needed here and is not installed: pip install no_such_package_1$"
    with pytest.raises(ImportError, match=message):
        require(module)
    assert not is_installed("no_such_package_1")


def test_extras_are_named_as_they_are_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    message = r'^sklearn is needed here and is not installed: pip install "scikit-learn>=1.5"$'
    with pytest.raises(ImportError, match=message):
        require("sklearn")


def test_several_are_installed_by_one_command():
    assert install_command("matplotlib", "jinja2", "sklearn", "other") == (
        'pip install "arviz>=0.20" "jinja2>=3.1" "matplotlib>=3.8" "scikit-learn>=1.5" other'
    )


def test_a_demo_names_all_that_it_lacks_before_it_runs(monkeypatch):
    module = sys.modules["phalanx.cli.demo"]  # in the package its name is that of the command
    monkeypatch.setattr(module, "is_installed", lambda package: package == "jinja2")
    done = CliRunner().invoke(app, ["demo", "digits"])
    assert isinstance(done.exception, ImportError)
    assert str(done.exception) == (
        "the demo digits needs matplotlib and sklearn: "
        'pip install "arviz>=0.20" "jinja2>=3.1" "matplotlib>=3.8" "scikit-learn>=1.5"'
    )


def test_a_package_that_is_broken_raises_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "broken_package_1.py").write_text("import no_such_package_2")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'no_such_package_2'$"):
        require("broken_package_1")


def test_extras_are_those_of_the_project_file():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {name for extra, names in extras.items() if extra not in ("all", "dev", *TOOLS) for name in names}
    asked -= {name for name in asked if name.startswith("phalanx[")}
    assert {name for names in DISTRIBUTIONS.values() for name in names} - {"h5netcdf"} == asked


def test_nobody_is_told_to_install_phalanx_by_a_name_that_is_not_ours():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py")]
    assert len(pages) > 100
    assert not [path for path in pages if "phalanx[" in path.read_text(encoding="utf-8")]
