"""Plot of the sampler's statistics: energies, and E-BFMI, acceptance and divergences of each chain."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics.energy import LOW_EBFMI, ebfmi, has_energy
from phalanx.report.plots.style import (
    ACCENT,
    ALARM,
    INK,
    MUTED,
    SECOND,
    bin_edges,
    finish,
    new_figure,
    panel,
    say,
    whole_numbers,
)
from phalanx.report.reported import Reported

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def energy_figure(posterior: Reported) -> Figure:
    """Draw four panels: marginal against transition energy, E-BFMI, acceptance, and divergences per chain.

    Args:
        posterior: the run.

    Returns:
        The figure. A panel contains words instead if the kernel has no kinetic energy, or a statistic is missing.
    """
    figure = new_figure(10, 5.8)
    for axes, draw in zip(figure.subplots(2, 2).ravel(), _panels().values(), strict=True):
        draw(axes, posterior)
    return figure


def energy_panels(posterior: Reported) -> dict[str, Figure]:
    """Return the panels of `energy_figure` as figures by title."""
    return {title: panel(draw, posterior) for title, draw in _panels().items()}


def _panels() -> dict[str, Callable[[Axes, Reported], None]]:
    return {
        "Energy": _energies, "E-BFMI": _fractions, "Acceptance rate": _acceptance, "Divergent draws": _divergences,
    }  # fmt: skip


def _energies(axes: Axes, posterior: Reported) -> None:
    """Draw the distribution of energies and that of their changes, which should cover the first."""
    finish(axes, "Energy", x="distance from the chain's mean energy")
    if not has_energy(posterior.stats):
        say(axes, "this kernel has no kinetic energy")
        return
    energy = posterior.stats["energy"].astype(np.float64)
    known = np.where(np.isfinite(energy), energy, np.nan)
    known = known[np.isfinite(known).all(axis=1)]
    if not known.size or known.shape[1] < 2:
        say(axes, "too few draws with a finite energy")
        return
    marginal, transition = (known - known.mean(axis=1, keepdims=True)).ravel(), np.diff(known, axis=1).ravel()
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
