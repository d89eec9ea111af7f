"""Plots of the sampler: energies, E-BFMI, acceptance and divergences of each chain, and the course of warm-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics.energy import LOW_EBFMI, ebfmi, has_energy
from phalanx.extras import require
from phalanx.report.plots.style import (
    ACCENT,
    ALARM,
    INK,
    MUTED,
    SECOND,
    bin_edges,
    finish,
    new_figure,
    say,
    whole_numbers,
)
from phalanx.report.posterior_protocol import Reported

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rounds = Mapping[str, np.ndarray]
"""Statistics of the rounds by name."""


def energy_figure(posterior: Reported) -> Figure:
    """Draw four panels: marginal against transition energy, E-BFMI, acceptance, and divergences per chain.

    Args:
        posterior: the run.

    Returns:
        The figure. A panel contains words instead if the kernel has no kinetic energy, or a statistic is missing.
    """
    figure = new_figure(10, 5.8)
    for axes, draw in zip(figure.subplots(2, 2).ravel(), energy_plots().values(), strict=True):
        draw(axes, posterior)
    return figure


def energy_plots() -> dict[str, Callable[[Axes, Reported], None]]:
    """Return the functions that draw the panels of `energy_figure`, by title."""
    return {
        "Energy": _energies,
        "E-BFMI": _fractions,
        "Acceptance rate": _acceptance,
        "Divergent draws": _divergences,
    }


def _energies(axes: Axes, posterior: Reported) -> None:
    """Draw the distribution of energies and that of their changes, which should cover the first."""
    finish(axes, "Energy", x="distance from the chain's mean energy")
    if not has_energy(posterior.stats):
        say(axes, "this kernel has no kinetic energy")
        return
    energy = posterior.stats["energy"].astype(np.float64)
    finite = np.where(np.isfinite(energy), energy, np.nan)
    finite = finite[np.isfinite(finite).all(axis=1)]
    if not finite.size or finite.shape[1] < 2:
        say(axes, "too few draws with a finite energy")
        return
    marginal = (finite - finite.mean(axis=1, keepdims=True)).ravel()
    transition = np.diff(finite, axis=1).ravel()
    # A few wild draws must not squeeze all others into one bin.
    low, high = np.quantile(np.concatenate([marginal, transition]), [0.001, 0.999])
    edges = bin_edges(low, high, marginal.size)
    for values, color, label in ((marginal, ACCENT, "all draws"), (transition, SECOND, "change between draws")):
        share = np.histogram(values, edges)[0] / values.size
        axes.stairs(share, edges, fill=True, color=color, alpha=0.25)
        axes.stairs(share, edges, color=color, linewidth=1.4, label=label)
    axes.set_yticks([])
    axes.legend(frameon=False, fontsize=8.5, labelcolor=INK)


def _fractions(axes: Axes, posterior: Reported) -> None:
    """Draw one dot per chain, in red if it is too low."""
    finish(axes, "E-BFMI", x="chain")
    if not has_energy(posterior.stats):
        say(axes, "this kernel has no kinetic energy")
        return
    fractions = ebfmi(posterior.stats["energy"])
    _dots(axes, fractions, np.where(fractions < LOW_EBFMI, ALARM, ACCENT))
    axes.axhline(LOW_EBFMI, color=ALARM, linewidth=0.9, linestyle=(0, (4, 3)))
    where = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "bottom"}
    axes.text(1, LOW_EBFMI, f"too low below {LOW_EBFMI}", fontsize=8, color=ALARM, **where)
    top = np.nanmax(fractions) if np.isfinite(fractions).any() else 1
    axes.set_ylim(0, 1.2 * max(top, 0.5))


def _acceptance(axes: Axes, posterior: Reported) -> None:
    """Draw the mean of each chain, and the range of 90% of its draws."""
    finish(axes, "Acceptance rate", x="chain")
    rates = posterior.stats.get("acceptance_rate")
    if rates is None or not np.isfinite(rates).all():
        say(axes, "this kernel reports no acceptance rate")
        return
    chains = np.arange(len(rates))
    low, high = np.quantile(rates, [0.05, 0.95], axis=1)
    axes.vlines(chains, low, high, color=ACCENT, alpha=0.3, linewidth=min(6.0, max(0.8, 200 / len(rates))))
    _dots(axes, rates.mean(axis=1), ACCENT)
    axes.set_ylim(-0.02, 1.04)


def _divergences(axes: Axes, posterior: Reported) -> None:
    """Draw one bar per chain that diverged."""
    finish(axes, "Divergent draws", x="chain")
    diverging = posterior.stats.get("diverging")
    if diverging is None or not diverging.any():
        say(axes, "no draw diverged")
        return
    counts = diverging.sum(axis=1)
    axes.bar(np.arange(len(counts)), counts, color=ALARM, width=0.35 if len(counts) < 40 else 1.0)
    axes.set_xlim(-0.6, len(counts) - 0.4)
    whole_numbers(axes.xaxis, 9)
    whole_numbers(axes.yaxis, 5)


def _dots(axes: Axes, heights: Float[np.ndarray, "chain"], color: str | np.ndarray) -> None:
    """Draw one dot per chain."""
    size = 42 if len(heights) <= 16 else 12
    axes.scatter(np.arange(len(heights)), heights, s=size, c=color, zorder=3, linewidths=0)  # pyright: ignore[reportArgumentType]
    axes.set_xlim(-0.6, len(heights) - 0.4)
    axes.tick_params(axis="x", colors=MUTED)
    whole_numbers(axes.xaxis, 9)


def warmup_figure(posterior: Reported) -> Figure:
    """Draw what changed during warm-up: step size, acceptance rate, and, if tuned, metric and length of trajectories.

    Args:
        posterior: the run; its `warmup` holds at least one round.

    Returns:
        The figure. Dashed lines mark rounds after which a new metric was in use, dotted lines rounds that moved chains.
    """
    plots = warmup_plots(posterior)
    figure = new_figure(10, 2.8)
    for axes, draw in zip(figure.subplots(1, len(plots), squeeze=False)[0], plots.values(), strict=True):
        draw(axes, posterior.warmup)
    return figure


def warmup_plots(posterior: Reported) -> dict[str, Callable[[Axes, Rounds], None]]:
    """Return the functions that draw the panels of `warmup_figure`, by title."""
    plots = {"Step size": _step_size, "Acceptance rate": _acceptance_rate}
    if "metric_low" in posterior.warmup:
        plots["Metric"] = _metric
    if "trajectory_length" in posterior.warmup:
        plots["Length of trajectories"] = _trajectory_length
    return plots


def _step_size(axes: Axes, rounds: Rounds) -> None:
    _frame(axes, rounds, "Step size (log axis)", log=True)
    _line(axes, rounds, "step_size", ACCENT)


def _acceptance_rate(axes: Axes, rounds: Rounds) -> None:
    _frame(axes, rounds, "Acceptance rate of the round")
    _line(axes, rounds, "acceptance_rate", ACCENT)
    axes.set_ylim(0, 1.02)


def _metric(axes: Axes, rounds: Rounds) -> None:
    """Draw the range of the standard deviations by which the metric scales the coordinates."""
    _frame(axes, rounds, "Scales of the metric (log axis)", log=True)
    axes.fill_between(
        rounds["iteration"], rounds["metric_low"], rounds["metric_high"], color=SECOND, alpha=0.2, linewidth=0
    )
    for name in ("metric_low", "metric_high"):
        _line(axes, rounds, name, SECOND)


def _trajectory_length(axes: Axes, rounds: Rounds) -> None:
    _frame(axes, rounds, "Length of trajectories (log axis)", log=True)
    _line(axes, rounds, "trajectory_length", SECOND)


def _frame(axes: Axes, rounds: Rounds, title: str, *, log: bool = False) -> None:
    """Finish the axes, and mark rounds that changed the metric or moved chains."""
    finish(axes, title, x="iteration of warm-up")
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(require("matplotlib.ticker").LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(require("matplotlib.ticker").NullLocator())
    metric_changes = rounds["metric_changed"].astype(bool)
    has_relocations = rounds["relocated_chains"] > 0
    for where, line, dashes in ((metric_changes, MUTED, (0, (4, 3))), (has_relocations, ALARM, (0, (1, 2)))):
        for iteration in rounds["iteration"][where]:
            axes.axvline(iteration, color=line, linewidth=0.8, linestyle=dashes, zorder=0)
    whole_numbers(axes.xaxis)


def _line(axes: Axes, rounds: Rounds, name: str, color: str) -> None:
    axes.plot(rounds["iteration"], rounds[name], color=color, linewidth=1.3, marker=".", markersize=3)
