"""Figures of a run, drawn together and saved as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from phalanx.report.plots.chains import autocorrelation_figure, rank_figure, trace_figure
from phalanx.report.plots.chosen import choose_quantities, choose_suspects
from phalanx.report.plots.pairs import pair_figure
from phalanx.report.plots.sampler import energy_figure, energy_plots, warmup_figure, warmup_plots
from phalanx.report.plots.style import PANEL, panel
from phalanx.report.posterior_protocol import Reported

if TYPE_CHECKING:
    from jaxtyping import Bool
    from matplotlib.figure import Figure


def draw_panels(posterior: Reported) -> dict[str, dict[str, Figure]]:
    """Draw the figures that a page puts side by side or below one another.

    Args:
        posterior: the run.

    Returns:
        Figures by their alternative text, by name.
    """
    quantities = choose_quantities(posterior)
    diverging = _diverging(posterior)
    panels = {
        "traces": {f"Trace of {one.name}": trace_figure([one], diverging, PANEL) for one in quantities},
        "ranks": {f"Ranks of {one.name}": rank_figure([one], PANEL) for one in quantities},
        "autocorrelation": {f"Autocorrelation of {one.name}": autocorrelation_figure(one) for one in quantities},
        "pairs": {"Pairs of elements": pair_figure(choose_suspects(posterior), diverging)},
        "energy": {title: panel(draw, posterior) for title, draw in energy_plots().items()},
    }
    if posterior.warmup:
        panels["warmup"] = {title: panel(draw, posterior.warmup) for title, draw in warmup_plots(posterior).items()}
    return panels


def _diverging(posterior: Reported) -> Bool[np.ndarray, "chain draw"]:
    sizes = (posterior.num_chains, posterior.num_draws)
    return posterior.stats.get("diverging", np.zeros(sizes, bool)).astype(bool)


def save_figures(posterior: Reported, folder: str | PathLike[str]) -> list[Path]:
    """Save the figures of a run as PNG files.

    They show the log density and up to five scalar elements with the worst R-hat; the pairs show up to four elements
    that predict divergences or mix worst.

    Args:
        posterior: the run.
        folder: the folder; made if missing.

    Returns:
        The files written: `traces.png`, `ranks.png`, `pairs.png`, `energy.png` and, if the run tuned a parameter,
        `warmup.png`.

    Raises:
        ValueError: if there are no draws.
        ImportError: if matplotlib is not installed.

    Example:
        >>> from phalanx.report import save_figures
        >>> [path.name for path in save_figures(posterior, "figures")]  # doctest: +SKIP
        ['traces.png', 'ranks.png', 'pairs.png', 'energy.png', 'warmup.png']
    """
    quantities = choose_quantities(posterior)
    diverging = _diverging(posterior)
    figures = {
        "traces": trace_figure(quantities, diverging),
        "ranks": rank_figure(quantities),
        "pairs": pair_figure(choose_suspects(posterior), diverging),
        "energy": energy_figure(posterior),
    }
    if posterior.warmup:
        figures["warmup"] = warmup_figure(posterior)
    return save_pictures(figures, folder)


def save_pictures(figures: Mapping[str, Figure], folder: str | PathLike[str]) -> list[Path]:
    """Save figures as PNG files by name in a folder, made if missing, and return their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        path.write_bytes(png(figure))
    return paths


def png(figure: Figure) -> bytes:
    """Render a figure as a PNG file."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
