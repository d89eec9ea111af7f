"""The package as it is published: one version, complete extras, and releases by tag."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import phalanx

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
FAKE_GH = """#!/bin/sh
printf '%s\\n' "$@" > published
"""


def test_the_version_is_written_once() -> None:
    assert "version" in PROJECT["project"]["dynamic"] and "version" not in PROJECT["project"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/phalanx/__init__.py"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == phalanx.__version__
    assert citation["license"] == PROJECT["project"]["license"]


def test_the_extra_of_all_names_every_extra_for_users() -> None:
    named = re.fullmatch(r"phalanx\[(.*)\]", "".join(EXTRAS["all"]))
    assert named is not None
    # `cli` is empty; the others are tools of this repository.
    assert {*named[1].split(",")} | {"cli", "all", "dev", "docs", "release"} >= set(EXTRAS)


@pytest.fixture
def release(tmp_path: Path):
    """Return a function that runs `.ci/release` for a tag, in a copy of what it reads, and its folder."""
    for name in (".ci/release", "CITATION.cff", "src/phalanx/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    sections = ("Unreleased", "later"), (phalanx.__version__, "this"), ("0.0.1", "before")
    changelog = "".join(f"## [{version}]\n\n- {note}\n\n" for version, note in sections)
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gh").write_text(FAKE_GH)
    (tmp_path / "bin/gh").chmod(0o755)
    (tmp_path / "dist").mkdir()
    for end in ("-py3-none-any.whl", ".tar.gz"):
        (tmp_path / f"dist/phalanx-{phalanx.__version__}{end}").touch()

    def run(tag: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "GITHUB_REF_NAME": tag, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        return subprocess.run([tmp_path / ".ci/release"], env=environment, capture_output=True, text=True)

    return run, tmp_path


def test_a_tag_publishes_its_section_and_its_files(release) -> None:
    run, folder = release
    done = run(f"v{phalanx.__version__}")
    assert done.returncode == 0, done.stderr
    published = (folder / "published").read_text()
    assert "- this" in published and "later" not in published and "before" not in published
    assert f"dist/phalanx-{phalanx.__version__}.tar.gz" in published and "-py3-none-any.whl" in published


def test_a_tag_of_another_version_is_refused(release) -> None:
    done = release[0]("v9.9.9")
    version = phalanx.__version__
    assert done.returncode == 1 and done.stderr == (
        f"the tag is v9.9.9, but phalanx.__version__ is {version}: push the tag v{version}, or change the version\n"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CHANGELOG.md", "CHANGELOG.md has no section"),
        ("CITATION.cff", "CITATION.cff has another version"),
        ("dist/phalanx-{}.tar.gz", "run make dist"),
    ],
)
def test_an_incomplete_release_is_refused(release, name: str, message: str) -> None:
    run, folder = release
    file = folder / name.format(phalanx.__version__)
    if name.startswith("dist"):
        file.unlink()
    else:
        file.write_text("")
    done = run(f"v{phalanx.__version__}")
    assert done.returncode == 1 and message in done.stderr and not (folder / "published").exists()
