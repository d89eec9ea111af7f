"""Pictures of a matrix factorisation: traces of the chains, and recommendations to two users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from phalanx.datasets import Watched
from phalanx.report.plots.style import ACCENT, CHAINS, SECOND, explain, finish, new_figure, printable, whole_numbers

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.figure import Figure

SHOWN = 12
"""Films or genres in a picture."""

COLORS = {"most": ACCENT, "fewest": SECOND}


def traces(stats: Mapping[str, np.ndarray]) -> Figure:
    """Draw log density and acceptance rate of every draw, chain by chain."""
    figure = new_figure(7.5, 4.4)
    panels = figure.subplots(2, 1, sharex=True)
    for axes, name in zip(panels, ("log_density", "acceptance_rate"), strict=True):
        for chain, values in enumerate(stats[name]):
            draws = np.arange(1, len(values) + 1)
            axes.plot(draws, values, color=CHAINS[chain % len(CHAINS)], linewidth=0.8, label=f"chain {chain}")
        finish(axes, name.replace("_", " "), "draw" if axes is panels[-1] else "", "")
    whole_numbers(panels[-1].xaxis)
    if len(stats["log_density"]) <= len(CHAINS):
        explain(figure)
    return figure


def recommendations(shares: Float[np.ndarray, "user film"], users: Mapping[str, int], data: Watched) -> Figure:
    """Draw, for each user, the films that most often rank first, with their share of the draws."""
    names = [f"film {i}" for i in range(data.matrix.shape[1])] if data.titles is None else list(data.titles)
    return _bars(shares, users, data, names)


def by_genre(shares: Float[np.ndarray, "user film"], users: Mapping[str, int], data: Watched) -> Figure:
    """Draw, for each user, the genres of the best films; a film of several genres counts for each."""
    assert data.genres is not None  # the caller checks
    names = sorted({genre for genres in data.genres for genre in genres})
    of_film = np.array([[name in genres for name in names] for genres in data.genres], float)
    return _bars(shares @ of_film, users, data, names)


def _bars(shares: Float[np.ndarray, "user item"], users: Mapping[str, int], data: Watched, names: list[str]) -> Figure:
    figure = new_figure(9.0, 4.2)
    panels = figure.subplots(1, len(users), sharex=True)
    for axes, (which, user), share in zip(panels, users.items(), shares, strict=True):
        order = np.argsort(-share, kind="stable")[:SHOWN]
        order = order[share[order] > 0][::-1]
        axes.barh([printable(names[i], 30) for i in order], share[order], color=COLORS[which])
        watched = int(data.matrix[user].sum())
        finish(axes, f"User {user}: {which} films ({watched:,})", "share of draws", "", grid="x")
    return figure
