"""Test of stationarity: the draws of all chains together against those of an early part of the last window of warm-up.

Groups of chains agree with each other, however far from the posterior they are, if all of them drift together. The
pooled mean of hundreds of chains shows such a drift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

from phalanx.diagnostics.elements import Names, element_names, measure
from phalanx.diagnostics.judging.checks import Finding
from phalanx.errors.message_text import count, first_few

FALSE_ALARMS = 0.002
"""Probability of the finding, over all quantities, for chains that are stationary."""

TESTS = 2
"""Tests of each quantity: of its location and of its spread."""


@dataclass(frozen=True)
class Shifts:
    """Shifts of pooled means between two parts of a run, of each scalar quantity.

    Attributes:
        names: names of the quantities, in the order of the rows.
        early, late: mean of all chains in each part, `(element,)`.
        t: Student's t of the shift of normal scores, and of those of distances from the median, `(element, 2)`.
        num_chains: number of chains.
    """

    names: tuple[str, ...]
    early: np.ndarray
    late: np.ndarray
    t: np.ndarray
    num_chains: int

    @property
    def finding(self) -> Finding | None:
        """The finding "not stationary"; None if no mean has moved by more than its error."""
        p_values = 2 * stdtr(self.num_chains - 1, -np.abs(self.t))
        is_defined = np.isfinite(p_values)
        least = np.where(is_defined, p_values, 1.0).min(axis=1)
        moved_elements = np.flatnonzero(least < FALSE_ALARMS / max(int(is_defined.sum()), 1))
        if not len(moved_elements):
            return None
        moved_elements = moved_elements[np.argsort(-np.nanmax(np.abs(self.t[moved_elements]), axis=1), kind="stable")]
        problem = (
            f"The chains have not arrived at the posterior: all of them drift together, and groups that agree do not "
            f"show it. Since an early part of the last adaptation window, {len(moved_elements):,} of "
            f"{count(len(self.names), 'quantity')} moved by more than chance explains (means of all chains, then and "
            f"now: {first_few(moved_elements, self._means)})."
        )
        return Finding("not stationary", problem, ADVICE)

    def _means(self, row: int) -> str:
        return f"{self.names[row]} {self.early[row]:.3g}, {self.late[row]:.3g}"


ADVICE = (
    "a longer warm-up (num_warmup); if that does not help, starts from a fit, "
    "init=phx.fit(model, phx.guides.pathfinder(), data), another parametrisation, or phx.nuts()"
)
"""Advice for chains that have not arrived."""


def shifts(
    early: Mapping[str, np.ndarray],
    late: Mapping[str, np.ndarray],
    labels: Names | None = None,
    total: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> Shifts:
    r"""Compare the pooled means of late draws with those of early draws of the same chains.

    With $d_i$ the difference between the means of chain `i` in both parts, of normal scores of the draws or of their
    distances from the median, $t = \bar d / \sqrt{\operatorname{var}(d) / S}$ has nearly Student's distribution with
    $S - 1$ degrees of freedom if the `S` chains are stationary, however slowly they move.

    Args:
        early: draws `(chain, draw, ...)` by variable.
        late: later draws of the same chains and variables.
        labels: labels of the entries, by variable and axis.
        total: adds numbers up over processes that have other chains.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics.judging.stationarity import shifts
        >>> random = np.random.default_rng(0)
        >>> early, late = random.normal(size=(256, 4)) - 1.0, random.normal(size=(256, 10))
        >>> shifts({"x": early}, {"x": late}).finding.topic
        'not stationary'

    Source: Student (1908), The probable error of a mean.
    """
    names: list[str] = []
    sums = []
    chains = 0
    for variable, values in late.items():
        before = np.asarray(early[variable])
        after = np.asarray(values)
        chains = len(after)
        first = before.shape[1]
        names += element_names(variable, after.shape[2:], labels)
        both = np.concatenate([before, after], axis=1)
        sums.append(measure(lambda elements, first=first: elements.shift(first), both).reshape(-1, 2 + 2 * TESTS))
    all_sums = total(np.concatenate(sums))
    num_chains = int(total(np.array(chains)))
    means, d, squares = np.split(all_sums / num_chains, [2, 2 + TESTS], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # constants do not move
        t = d / np.sqrt((squares - d**2) / (num_chains - 1))
    return Shifts(tuple(names), means[:, 0], means[:, 1], t, num_chains)
