"""The README's first block with what the base install brings and no more."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]

BLOCK = """
import sys
class OnlyTheBase:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {blocked!r} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(OnlyTheBase, sys.meta_path)
"""


def _brought(names: set[str]) -> set[str]:
    """Names of distributions, and of all they need here."""
    found, left = set(), set(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            needed = [Requirement(line) for line in requires(name) or ()]
            left |= {_plain(r.name) for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})}
    return found


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def test_the_first_block_of_the_readme_needs_nothing_else(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = _brought({_plain(Requirement(line).name) for line in project["dependencies"]})
    blocked = {
        module
        for module, owners in packages_distributions().items()
        if module != "phalanx" and not any(_plain(owner) in base for owner in owners)
    }
    assert {"matplotlib", "arviz"} <= blocked and not {"rich", "typer"} & blocked
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    run, *_ = block.group(1).partition("posterior.report(")
    code = f"""{BLOCK.format(blocked=blocked)}{run}
assert posterior.verdict().grade != "not good" and repr(posterior.summary()).endswith(str(posterior.verdict()))
assert posterior.summary().sort_values("r_hat").loc["mu", "r_hat"] < 1.05
assert posterior.predictive()["y"].shape == (4, 1000, 8)
try:
    posterior.report("report.html")
except ImportError as error:
    assert 'pip install "arviz>=0.20" "jinja2>=3.1" "matplotlib>=3.8"' in str(error), error
else:
    raise SystemExit("matplotlib was there")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Usable" in done.stdout or "Good to use" in done.stdout
