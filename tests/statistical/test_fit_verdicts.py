"""Each check of a fit's verdict, with a case of `benchmarks/fit_verdicts.py` whose verdict is wrong without it."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.diagnostics import Finding
from phalanx.variational.judging import judge

JUDGING, ROOT = "phalanx.variational.judging", Path(__file__).parents[2]
GRADES = ("not good", "usable", "good")


class Needed(NamedTuple):
    """A check, with a case that it decides.

    Attributes:
        topics: topics of the findings that it makes or prevents.
        case, method: the fit, by its names in `benchmarks/fit_verdicts.py`.
        off: replacements that switch the check off, by path within the package of judgements.
        is_right: whether the fit is right: its moments are those of the posterior.
        grades: grades of the verdict with the check, and without it.
        seed: seed of the fit.
    """

    topics: set[str]
    case: str
    method: str
    off: Mapping[str, object]
    is_right: bool
    grades: tuple[str, str]
    seed: int = 0


def nothing(*_: object) -> list[Finding]:
    return []


def only_heavy(*_: object) -> list[Finding]:
    """Return the finding on draws whose weights cannot be averaged, without moves of the draws."""
    return [Finding("heavy weights", "", "")]


def certain(compare: Callable[..., judge.Compared]) -> classmethod:
    """Return a comparison of moments that takes all of them for certain."""
    return classmethod(lambda _, found: compare(found)._replace(vague=[], heavy=[]))


NO_BOUND = {"judge.threshold": lambda _: np.inf, "evidence.threshold": lambda _: np.inf}

CHECKS = {
    "weighted means": Needed(
        {"means off"}, "Beta(3, 6)", "laplace", {"judge.MEAN_OFF": np.inf}, False, ("not good", "good")
    ),
    "weighted standard deviations": Needed(
        {"scales off"}, "Gamma(1, 1)", "mean_field", {"judge._of_moments": nothing}, False, ("not good", "good")
    ),
    "tail of the weights": Needed(
        {"heavy weights"}, "InverseGamma(8, 1)", "mean_field", NO_BOUND, True, ("usable", "not good")
    ),
    "moves of draws with heavy weights": Needed(
        {"heavy weights"}, "InverseGamma(8, 1)", "mean_field", {"judge._of_heavy": only_heavy}, True,
        ("usable", "not good"),
    ),
    "uncertainty of moves": Needed(
        {"heavy weights"}, "sparse Dirichlet", "mean_field",
        {"judge.Compared.of": certain(judge.Compared.of)}, False, ("not good", "usable"),
    ),
    "uncertainty of weighted moments": Needed(
        {"few effective draws", "heavy tails"}, "InverseGamma(2.5, 1)", "pathfinder",
        {"judge.Compared.of": certain(judge.Compared.of)}, False, ("usable", "good"), seed=2,
    ),
    "moves of draws with light weights": Needed(
        {"missed tails"}, "banana", "pathfinder", {"judge._of_tails": lambda *_: ""}, False, ("not good", "good")
    ),
    "climbs and symmetries": Needed(
        {"missed modes"}, "two modes", "laplace",
        {"modes.Modes._climbed": nothing, "modes.Modes._exchanged": nothing}, False, ("not good", "good"),
    ),
    "mass of a mode": Needed(
        {"missed modes"}, "StudentT(5)", "mean_field", {"modes.MASS": 0.0}, True, ("usable", "not good")
    ),
}  # fmt: skip

FACTS = {
    "no number": "the model cannot be computed at some draws",
    "not settled": "the guide still changed; the only check of fits without weights",
    "not weighted": "rows came in batches, so that there are no weights",
    "failed steps": "steps were left out; with `not settled` the only check of fits without weights",
}
"""Findings that report on the computation of any fit, and need no posterior that shows them."""


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    with jax.numpy_rank_promotion("allow"):  # of NumPyro's mixtures
        yield importlib.import_module("fit_verdicts")
    sys.path.remove(str(ROOT / "benchmarks"))


@cache
def fit_of(benchmark: ModuleType, name: str, method: str, seed: int = 0) -> tuple[phx.Fit, bool]:
    """Return a fit, and whether its moments are those of the posterior."""
    case, (guide, options) = benchmark.CASES[name], benchmark.METHODS[method]
    fit = phx.fit(case.model, guide, case.data, seed=seed, progress=False, **options)
    draws = fit.sample(seed=1, n=20_000)
    return fit, benchmark.is_right(draws, benchmark.truth_of(case, draws))[0]


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_a_verdict_is_wrong_without_the_check(benchmark, check, monkeypatch):
    needed = CHECKS[check]
    fit, is_right = fit_of(benchmark, needed.case, needed.method, needed.seed)
    before = fit.verdict()
    assert is_right == needed.is_right
    fit._weighted_draws._kept.pop("modes", None)
    for path, replacement in needed.off.items():
        monkeypatch.setattr(f"{JUDGING}.{path}", replacement)
    after = fit.verdict()
    fit._weighted_draws._kept.pop("modes", None)
    assert (before.grade, after.grade) == needed.grades
    reported = {finding.topic for finding in [*before.findings, *after.findings]}
    assert needed.topics <= reported


@pytest.mark.slow
def test_only_exchanges_of_elements_name_equal_modes(benchmark, monkeypatch):
    # climbs reach the modes of exchanged labels, too, but cannot say why they are equal
    fit, _ = fit_of(benchmark, "labels of 2", "laplace")
    assert "elements 0 and 1 of share, mean exchanged" in str(fit.verdict())
    fit._weighted_draws._kept.pop("modes")
    monkeypatch.setattr(f"{JUDGING}.modes.Modes._exchanged", nothing)
    after = fit.verdict()
    fit._weighted_draws._kept.pop("modes")
    assert after.grade == "not good" and "exchanged" not in str(after)


@pytest.mark.slow
def test_only_changes_of_sign_name_the_other_half_of_a_factor_model(monkeypatch):
    # climbs end at the joint maximum of loadings and scores, whose mass is not that of the mode
    random = np.random.default_rng(0)
    loadings = random.normal(size=5) + 2.0 * np.sign(random.normal(size=5))
    y = random.normal(size=(60, 1)) * loadings + 0.5 * random.normal(size=(60, 5))

    def model(y):
        loadings = phx.sample("loadings", dist.Normal(0.0, 3.0).expand([5]))
        scores = phx.sample("scores", dist.Normal(0.0, 1.0).expand([60, 1]))
        phx.sample("y", dist.Normal(scores * loadings[None], 0.5), obs=y)

    fit = phx.fit(model, phx.guides.flow(), {"y": y.astype(np.float32)}, seed=1, progress=False)
    verdict = fit.verdict()
    assert verdict.grade == "not good" and "loadings, scores with the opposite sign" in str(verdict)
    fit._weighted_draws._kept.pop("modes")
    monkeypatch.setattr(f"{JUDGING}.modes.Modes._exchanged", nothing)
    assert fit.verdict().grade in GRADES[1:]  # half of the posterior is missed


def test_the_table_makes_verdicts_wrong():
    for needed in CHECKS.values():
        better = GRADES.index(needed.grades[1]) > GRADES.index(needed.grades[0])
        assert better != needed.is_right


def test_every_finding_is_in_the_table():
    calls = [node for node in ast.walk(ast.parse(Path(judge.__file__).read_text())) if isinstance(node, ast.Call)]
    made = {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "Finding" and isinstance(call.args[0], ast.Constant)
    }
    assert made == set(FACTS).union(*(needed.topics for needed in CHECKS.values()))
