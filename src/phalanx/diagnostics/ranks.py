"""Ranks of true values among posterior draws given simulated data: uniform, if the method is correct.

Source:
    Talts, Betancourt, Simpson, Vehtari, Gelman (2018), Validating Bayesian inference algorithms with simulation-based
    calibration; Modrák, Moon, Kim, Bürkner, Huurre, Faltejsková, Gelman, Vehtari (2025), Simulation-based calibration
    checking for Bayesian computation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.diagnostics.elements import Names, element_names
from phalanx.diagnostics.judging.checks import Finding
from phalanx.diagnostics.judging.verdict import Verdict, judged
from phalanx.errors.message_text import count, first_few

if TYPE_CHECKING:
    from pandas import DataFrame

FALSE_ALARM = 0.01
"""Probability of a finding about a correct method, over all elements together."""

PER_BIN = 10
"""Fewest simulations in each bin of a histogram of ranks."""

ADVICE = (
    "posterior.verdict() of single runs, a longer warm-up or another kernel; for a fit a more flexible guide. If these "
    "are good, the model that simulates differs from the one that is inferred"
)


class Uniformity(NamedTuple):
    """Three tests of the ranks of one element.

    Attributes:
        location: mean excess of the true values over the middle of the draws, in standard errors.
        width: mean excess of their squared distance from the middle, in standard errors: above zero the draws are too
            narrow.
        p_value: the smallest of these two tests and of a chi-squared test, corrected for three tests.
    """

    location: float
    width: float
    p_value: float


@dataclass(frozen=True)
class Ranks:
    """Ranks of the values from which data were simulated among draws given these data.

    Attributes:
        ranks: whole numbers from 0 to `num_draws`, `(simulation, ...)` by variable.
        num_draws: draws with which each value was compared.
        labels: labels of the entries of variables, by variable and axis.
    """

    ranks: Mapping[str, np.ndarray]
    num_draws: int
    labels: Names = field(default_factory=dict, repr=False)

    @property
    def num_simulations(self) -> int:
        """The number of simulated data sets."""
        return len(next(iter(self.ranks.values())))

    @cached_property
    def uniformity(self) -> dict[str, Uniformity]:
        """Tests of the ranks of each element."""
        return {name: self._uniformity(ranks) for name, ranks in self.elements()}

    def elements(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each scalar element's name and ranks, `(simulation,)`."""
        for name, ranks in self.ranks.items():
            yield from zip(
                element_names(name, ranks.shape[1:], self.labels), ranks.reshape(len(ranks), -1).T, strict=True
            )

    def summary(self) -> DataFrame:
        """Return a row for each element: `location` and `width` in standard errors, and a `p_value`."""
        from pandas import DataFrame

        return DataFrame.from_dict(self.uniformity, orient="index", columns=list(Uniformity._fields))

    def verdict(self) -> Verdict:
        """Return a verdict that is good if all ranks are uniform; a correct method fails once in a hundred times."""
        limit = FALSE_ALARM / len(self.uniformity)
        bad = sorted((test.p_value, name) for name, test in self.uniformity.items() if test.p_value < limit)
        elements = count(len(self.uniformity), "element")
        uniform = f"the ranks of {elements} in {self.num_simulations} simulations are uniform"
        if not bad:
            return judged((), (f"{uniform[0].upper()}{uniform[1:]}.",), good=uniform)
        problem = first_few([name for _, name in bad], self._problem, "; ")
        return judged([Finding("ranks that are not uniform", f"{problem}.", ADVICE)], ())

    def histogram(self, name: str) -> np.ndarray:
        """Return the number of ranks of an element in each of several bins of equal width."""
        return self._binned(dict(self.elements())[name])

    def _uniformity(self, ranks: np.ndarray) -> Uniformity:
        from scipy import stats  # slow to import

        values = np.arange(self.num_draws + 1) - self.num_draws / 2.0
        off = ranks - self.num_draws / 2.0
        error = np.sqrt(len(ranks))
        location = off.mean() / values.std() * error
        width = ((off**2).mean() - (values**2).mean()) / (values**2).std() * error if self.num_draws > 1 else 0.0
        counts = self._binned(ranks)
        of_counts = stats.chisquare(counts).pvalue if len(counts) > 1 else 1.0
        least = min(float(p) for p in (*(2.0 * stats.norm.sf(np.abs([location, width]))), of_counts))
        return Uniformity(float(location), float(width), min(3.0 * least, 1.0))

    def _binned(self, ranks: np.ndarray) -> np.ndarray:
        kinds = self.num_draws + 1
        bins = max(n for n in range(1, kinds + 1) if kinds % n == 0 and (n == 1 or n * PER_BIN <= len(ranks)))
        return np.bincount(ranks * bins // kinds, minlength=bins)

    def _problem(self, name: str) -> str:
        test = self.uniformity[name]
        text = "its ranks are not uniform"
        if max(abs(test.location), abs(test.width)) > 3.0:
            if abs(test.location) >= abs(test.width):
                text = f"draws are too {'low' if test.location > 0 else 'high'}"
            else:
                text = f"draws are too {'narrow' if test.width > 0 else 'wide'}"
        return f"{name}: {text} (location {test.location:+.1f}, width {test.width:+.1f} standard errors)"


def rank_of(truth: np.ndarray, draws: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return the number of draws `(draw, ...)` below a value; its rank among equal draws is random."""
    below = (draws < truth).sum(0)
    equal = (draws == truth).sum(0)
    return below + generator.integers(0, equal + 1)
