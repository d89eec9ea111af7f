"""Change of coordinates between two windows of a warm-up: a centring of variables, learned from draws."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from phalanx.adaptation.centring import learn_centring
from phalanx.adaptation.moments import VectorMoments
from phalanx.adaptation.tuner import Recentred, Sample, Sums
from phalanx.mesh.position import Vector
from phalanx.programs.centring import Centrings, recentred
from phalanx.run.engine import Engine

MOST_ROWS, FEWEST_ROWS, NUMBERS = 4096, 256, 2**22
"""Bounds on the number of a window's draws, of all chains, from which a centring and then a metric are learned, and on
the numbers in them."""


class Recentring(NamedTuple):
    """A centring, draws in the coordinates that belong to it, and the gradients evaluated to find both."""

    centring: Centrings
    draws: Recentred
    evaluations: int


def recentring_of(engine: Engine, sample: Sample) -> Recentring:
    """Return the centring that a window's draws suggest, and these draws in the new coordinates."""
    count, layout = len(sample.chain), engine.blocks.layout
    most = min(max(NUMBERS // layout.coordinates, FEWEST_ROWS), MOST_ROWS)
    chosen = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
    sample = jax.tree.map(lambda values: values[chosen], sample)
    position = Vector(tuple(sample.position), layout)
    found = engine.located(engine.arrays, position)
    centring = {name: learn_centring(*of, before=engine.centring[name]) for name, of in found.residuals.items()}
    values = {**position.by_variable(), **recentred(found.residuals, centring, layout.dtype)}
    position = layout.of_whole(values, zero=True)
    there = engine.located(engine.arrays_with(centring), position)
    moved = sample._replace(position=position.parts, gradient=there.gradient.parts)
    # the chains themselves are located, too, before and after
    evaluations = 2 * (len(chosen) + engine.blocks.num_chains)
    return Recentring(centring, Recentred(moved, _moments(moved)), evaluations)


def _moments(sample: Sample) -> Sums:
    """Return the moments of positions and gradients, of the draws at which all are finite."""
    parts = [part.astype(np.float64) for part in (*sample.position, *sample.gradient)]
    finite = np.logical_and.reduce([np.isfinite(part).all(1) for part in parts])
    count, groups = int(finite.sum()), len(sample.position)

    def of(part: np.ndarray) -> VectorMoments:
        mean = part[finite].sum(0) / max(count, 1)
        return VectorMoments(count, mean, np.square(part[finite] - mean).sum(0))

    position, gradient = tuple(map(of, parts[:groups])), tuple(map(of, parts[groups:]))
    return Sums(count, {}, 0.0, position, gradient)
