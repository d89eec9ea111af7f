"""Guides against reference posteriors: the verdict trusts no fit that is off, and trusts those known to be right.

`benchmarks/guides.py` writes the whole table. Seeds are fixed, so that the tests are the same on every run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.statistical.posteriordb.entries import ENTRIES
from tests.statistical.posteriordb.reference import stored

import phalanx as phx

GUIDES = {
    "mean_field": phx.guides.mean_field(),
    "full_rank": phx.guides.full_rank(),
    "low_rank": phx.guides.low_rank(rank=5),
    "laplace": phx.guides.laplace(),
    "pathfinder": phx.guides.pathfinder(),
    "structured": phx.guides.structured(),
    "flow": phx.guides.flow(),
    "batch_and_match": phx.guides.full_rank(),
}
OPTIONS: dict[str, dict[str, Any]] = {"batch_and_match": {"optimizer": "batch-and-match"}}
"""Options of `phx.fit` by guide."""

RIGHT = {
    "eight_schools_noncentered": "flow",
    "eight_schools_centered": "flow",
    "kidiq": "full_rank flow batch_and_match",
    "ark": "full_rank low_rank pathfinder flow batch_and_match",
    "garch11": "full_rank pathfinder flow batch_and_match",
    "sblrc": "full_rank low_rank pathfinder flow batch_and_match",
    "mesquite": "full_rank low_rank flow batch_and_match",
    "gauss_mix": "full_rank laplace pathfinder flow batch_and_match",
    "gp_regr": "mean_field full_rank laplace pathfinder structured flow batch_and_match",
    "nes": "full_rank batch_and_match",
    "earnings": "full_rank batch_and_match",
}
"""Guides by posterior whose fits are right and were trusted: 39 of the 96 pairs."""

OFF = 0.1
"""Error of a mean, in standard deviations, that no trusted fit may have."""

TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "tables" / "guides.json"


class Judged(NamedTuple):
    """Grade of a fit's verdict, and its worst mean."""

    grade: str
    worst: float


def worst_mean(entry, draws):
    """The mean that is furthest from the reference's, in its standard deviations."""
    reference, worst = stored(entry.reference)["reference"], 0.0
    for name in entry.names:
        values = np.asarray(draws[name], float)
        for i, column in enumerate(values.reshape(len(values), -1).T):
            known = reference[name if values.ndim == 1 else f"{name}[{i + 1}]"]
            worst = max(worst, abs(column.mean() - known["mean"]) / known["sd"])
    return worst


def check(found: Mapping[tuple[str, str], Judged]) -> None:
    """Raise if verdicts trust a fit that is off, or refuse over a tenth of the right ones, 3 of 39; one may differ."""
    off = [f"{guide} on {name}" for (name, guide), fit in found.items() if fit.grade == "good" and not fit.worst < OFF]
    assert not off, f"trusted, but a mean is off: {', '.join(off)}"
    right = right_of(found)
    shy = [f"{guide} on {name}" for name, guide in right if found[name, guide].grade == "not good"]
    words = f"only {len(right) - len(shy)} of {len(right)} right fits are of use, not {', '.join(shy)}"
    assert len(shy) <= max(1, len(right) // 10), words


def right_of(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, guide) for name, guide in pairs if guide in RIGHT.get(name, "").split()]


def is_here(name: str) -> bool:
    """Return whether the data of a posterior are here: of some only if PHALANX_DATA names their folder."""
    try:
        return bool(ENTRIES[name].data())
    except FileNotFoundError:
        return False


def judged(name: str, guide: str) -> Judged:
    """Fit a guide to a posterior; a fit that is refused is not trusted."""
    entry = ENTRIES[name]
    try:
        fit = phx.fit(entry.program, GUIDES[guide], entry.data(), **OPTIONS.get(guide, {}), progress=False)
    except ValueError as refused:
        assert str(refused).partition(":")[0] in ("fit", "guide", "guides"), refused
        return Judged("not good", inf)
    return Judged(fit.verdict().grade, worst_mean(entry, fit.sample(seed=1, n=20_000)))


def test_verdicts_that_always_refuse_or_always_accept_fail():
    rows = json.loads(TABLE.read_text())
    found = {
        (row["posterior"], row["guide"]): Judged(
            "good" if row["outcome"].startswith("trusted") else "not good", row.get("worst_mean", inf)
        )
        for row in rows
    }
    assert found.keys() == set(product(ENTRIES, GUIDES))
    check(found)
    with pytest.raises(AssertionError, match="only 0 of 39 right fits are of use, not .*full_rank on kidiq"):
        check({pair: fit._replace(grade="not good") for pair, fit in found.items()})
    with pytest.raises(AssertionError, match="trusted, but a mean is off: .*laplace on kidiq"):
        check({pair: fit._replace(grade="good") for pair, fit in found.items()})


def test_a_tenth_of_the_right_fits_may_be_refused():
    right = {pair: Judged("good", 0.0) for pair in right_of(product(ENTRIES, GUIDES))}
    refused = dict.fromkeys(list(right)[:3], Judged("not good", 0.0))
    check({**right, **refused})
    with pytest.raises(AssertionError, match="only 35 of 39"):
        check({**right, **refused, list(right)[-1]: Judged("not good", 0.0)})


@pytest.mark.slow
def test_verdicts_trust_the_right_fits_and_no_others():
    check({pair: judged(*pair) for pair in product(filter(is_here, ENTRIES), GUIDES)})
