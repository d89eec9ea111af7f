"""Run as the checks of a verdict receive it, and the bounds of its R-hat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import fdtri

from phalanx.diagnostics.elements import Names, element_names, measure
from phalanx.diagnostics.judging.separated_chains import DisagreeingVariable, Switching, separated_chains, switching_of

if TYPE_CHECKING:
    from pandas import DataFrame

HIGH_RHAT = 1.01
"""R-hat from which on long chains have not forgotten their starts (Vehtari et al., 2021)."""

FALSE_ALARMS = 0.01
"""Fraction of runs of independent draws in which any R-hat counts as high."""

SHORT_CHAIN = 100
"""Draws of a chain below which its own statistics are mostly noise."""

MIXING_TIME = 3.0
"""Autocorrelation time, in draws, up to which chance may explain a nested R-hat above 1.01."""

LARGE_RHAT = 1.05
"""R-hat from which on chains differ too much for any use, unless by chance."""

_DECIMALS = 3


@dataclass(frozen=True)
class CheckedRun:
    """Run as a check receives it: its summary, its statistics `(chain, draw)`, its size, and its draws, if stored.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics import CheckedRun, summary_table
        >>> draws = {"x": np.random.default_rng(0).normal(size=(4, 500))}
        >>> run = CheckedRun(summary_table(draws), {}, num_chains=4, num_draws=500, draws=draws)
        >>> run.disagreeing
        array([False])
    """

    table: DataFrame
    stats: Mapping[str, np.ndarray]
    num_chains: int
    num_draws: int
    draws: Mapping[str, np.ndarray] = field(default_factory=dict)
    labels: Names = field(default_factory=dict)
    superchains: int = 0

    @property
    def is_nested(self) -> bool:
        """True for short chains in groups with a common start, which are compared group by group."""
        return 0 < self.superchains < self.num_chains and self.num_draws < SHORT_CHAIN

    @property
    def r_hat(self) -> str:
        """Name of the R-hat that is judged."""
        return "nested R-hat" if self.is_nested else "R-hat"

    @cached_property
    def r_hats(self) -> np.ndarray:
        """R-hat of each quantity; of short superchains the nested one, where draws are stored."""
        r_hats = self.table["r_hat"].to_numpy().copy()
        for rows, values in self._blocks() if self.is_nested else ():
            r_hats[rows] = measure(lambda elements: elements.nested_rhat(self.superchains), values)
        return r_hats

    @cached_property
    def disagreeing(self) -> np.ndarray:
        """Mask of quantities whose R-hat is 1.01 or more, with a small p-value.

        With too few effective draws an R-hat of 1.05 or more counts as well, and in short superchains one that only
        chains which hardly move reach by chance, see `high_nested_rhat`. If no draws are stored, the bound is that of
        independent draws, see `high_rhat`.
        """
        values = self.r_hats
        p_values = self.chances
        bounded = np.where(np.isnan(p_values), values >= self.high_rhat, p_values < FALSE_ALARMS / len(self.table))
        if self.is_nested:
            large = values >= high_nested_rhat(self.num_chains, self.num_draws, self.superchains, len(self.table))
        else:
            large = (values >= LARGE_RHAT) & (self.least_ess < least_ess(self.num_chains))
        return (values >= HIGH_RHAT) & (bounded | large)

    @cached_property
    def chances(self) -> np.ndarray:
        """The p-values of the R-hats of 1.01 or more; NaN for the others, and without draws."""
        p_values = np.full(len(self.table), np.nan)
        suspects = self.r_hats >= HIGH_RHAT
        groups = self.superchains if self.is_nested else 0
        for rows, values in self._blocks() if suspects.any() else ():
            is_suspect = suspects[rows]
            suspect_values = values[:, :, is_suspect]
            p_values[rows[is_suspect]] = measure(lambda elements: elements.rhat_p_value(groups), suspect_values)
        return p_values

    @cached_property
    def heavy_shapes(self) -> np.ndarray:
        """Pareto shape of each quantity without a variance, which has no sd in the table; NaN for the others."""
        shapes = np.full(len(self.table), np.nan)
        sizes = self.table["ess_tail"].to_numpy()
        heavy = np.isfinite(sizes) & np.isnan(self.table["sd"].to_numpy())
        for rows, values in self._blocks() if heavy.any() else ():
            is_heavy = heavy[rows]
            if is_heavy.any():
                heavy_sizes = sizes[rows[is_heavy]]
                shapes[rows[is_heavy]] = [
                    measure(
                        lambda elements, size=size: elements.heavy_shapes(np.array([size])), values[:, :, [number]]
                    )[0]
                    for number, size in zip(np.flatnonzero(is_heavy), heavy_sizes, strict=True)
                ]
        return shapes

    def columns(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each quantity's name and draws, `(chain, draw)`; small variables come first."""
        names = self.table.index
        for rows, values in sorted(self._blocks(), key=lambda block: len(block[0])):
            yield from ((str(names[row]), values[:, :, number]) for number, row in enumerate(rows))

    def _blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield each variable's rows in the table and its draws, `(chain, draw, element)`, if the table has it."""
        for _, rows, values in self._variables():
            yield rows, values.reshape(*values.shape[:2], -1)

    def _variables(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield each variable, its rows in the table and its draws, `(chain, draw, ...)`, if the table has it."""
        variables = [("log_density", self.stats["log_density"])] if "log_density" in self.stats else []
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(map(str, self.table.index)):
            rows.setdefault(name, []).append(row)
        for variable, values in [*variables, *self.draws.items()]:
            names = element_names(variable, values.shape[2:], self.labels)
            if all(rows.get(name) for name in names):
                yield variable, np.array([rows[name].pop(0) for name in names], int), values

    @cached_property
    def least_ess(self) -> np.ndarray:
        """The lesser of bulk and tail ESS of each quantity."""
        return np.fmin(self.table["ess_bulk"].to_numpy(), self.table["ess_tail"].to_numpy())

    @cached_property
    def separation(self) -> str | None:
        """A sentence that locates the chains, if they sit in different places; else None."""
        values = self.r_hats
        high = np.flatnonzero(self.disagreeing)
        suspects = [str(self.table.index[row]) for row in high[np.argsort(-values[high])]]
        return separated_chains(self.draws, suspects, self.labels)

    @cached_property
    def switching(self) -> Switching | None:
        """Dimension along which chains that disagree have their entries in different orders; else None."""
        high = self.disagreeing
        disagreeing = []
        log_density = self.stats.get("log_density")
        for variable, rows, values in self._variables() if high.any() else ():
            if variable == "log_density" and values.ndim == 2:
                continue
            if high[rows].any():
                numbers = np.asarray(values, np.float64)
                means = numbers.mean(axis=1)
                sds = numbers.std(axis=1)
                disagreeing.append(DisagreeingVariable(variable, means, sds))
        return switching_of(disagreeing, log_density)

    @property
    def high_rhat(self) -> float:
        """The R-hat from which on chains disagree; see `high_rhat`."""
        return high_rhat(self.num_chains, self.num_draws, len(self.table))


def least_ess(num_chains: int) -> int:
    """Return the effective draws that estimates and diagnostics need: 100 per chain, for at most four chains.

    Source: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner (2021), Rank-normalization, folding, and
    localization: an improved R-hat for assessing convergence of MCMC.
    """
    return 100 * min(num_chains, 4)


def high_nested_rhat(num_chains: int, num_draws: int, superchains: int, num_quantities: int) -> float:
    r"""Return the nested R-hat from which on superchains have not mixed, or not moved enough to show that they have.

    Of superchains of `M` chains with `n` draws and an autocorrelation time of $\tau$,
    $\sqrt{1 + \tau F / (M n)}$ is reached by chance, with `F` a quantile of the F distribution. Chains with an
    autocorrelation time of more than `MIXING_TIME` draws have not moved enough.
    """
    effective = num_chains * num_draws / superchains / MIXING_TIME
    if superchains < 2 or effective <= 1:
        return HIGH_RHAT
    level = 1 - FALSE_ALARMS / (4 * max(num_quantities, 1))
    ratio = float(fdtri(superchains - 1, superchains * (effective - 1), level))
    return max(HIGH_RHAT, float(np.sqrt(1 + ratio / effective)))


def high_rhat(num_chains: int, num_draws: int, num_quantities: int) -> float:
    r"""Return the R-hat from which on chains disagree: 1.01, or more where independent draws reach it by chance.

    For `S = 2 M` half chains of `n` independent draws, $n \operatorname{var}(\bar x_s) / W$ has nearly an F
    distribution with `S - 1` and `S (n - 1)` degrees of freedom; the largest R-hat of all quantities, each tested
    twice, exceeds this bound, rounded up to three decimals, in one run of independent draws in a hundred.

    Source: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner (2021), Rank-normalization, folding, and
    localization: an improved R-hat for assessing convergence of MCMC.
    """
    length = num_draws // 2
    halves = 2 * num_chains
    if length < 2 or num_chains < 2:
        return HIGH_RHAT
    ratio = float(fdtri(halves - 1, halves * (length - 1), 1 - FALSE_ALARMS / (2 * max(num_quantities, 1))))
    accident = np.sqrt((length - 1 + ratio) / length)
    return max(HIGH_RHAT, float(np.ceil(1000 * accident)) / 1000)


def format_rhat(value: float, bound: float = 1.01) -> str:
    """Return R-hat with three decimals, or as many as show on which side of the bound it is."""
    if value >= 100:  # chains that stand still
        return "over 100"
    texts = (f"{value:.{digits}f}" for digits in range(_DECIMALS, 8))
    return next((text for text in texts if value == bound or float(text) != bound), f"{value:.8g}")
