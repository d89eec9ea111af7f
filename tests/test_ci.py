"""Workflows run what exists, on every Python that the package supports."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.stem: path for path in sorted((ROOT / ".github/workflows").glob("*.yml"))}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def jobs(name: str) -> dict[str, dict[str, Any]]:
    """Return the jobs of a workflow."""
    return yaml.safe_load(WORKFLOWS[name].read_text())["jobs"]


def pythons(name: str) -> set[str]:
    """Return the versions of Python on which a workflow runs."""
    found: set[str] = set()
    for job in jobs(name).values():
        found |= {*job.get("strategy", {}).get("matrix", {}).get("python", ())}
        found |= {step["with"]["python-version"] for step in job["steps"] if "python-version" in step.get("with", {})}
    return {version for version in found if not version.startswith("$")}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_run_what_exists(name: str) -> None:
    commands = [step["run"] for job in jobs(name).values() for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        first, *rest = command.split()
        assert rest[0] in TARGETS if first == "make" else (ROOT / first).is_file(), f"{name}.yml runs {command}"


def test_the_steps_of_ci_are_targets() -> None:
    steps = re.findall(r"^ *step .*?\bmake ([a-z-]+)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert steps == ["lint", "test", "demo"]
    assert {*steps} <= TARGETS


def test_every_supported_python_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert {project["requires-python"].removeprefix(">="), *named} <= pythons("push")
    assert pythons("nightly") <= pythons("push")


def test_the_parts_of_the_night_have_all_slow_tests() -> None:
    parts = " ".join(jobs("nightly")["slow"]["strategy"]["matrix"]["part"]).split()
    folders = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").iterdir() if [*path.rglob("test_*.py")]}
    assert {*parts} == {*folders, "src/phalanx", "tests/test_*.py"}
