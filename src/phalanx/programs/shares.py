"""What each device has a share of: the latent variables and terms of a program, and where they live.

The shares of all devices add up to the log density; `share_rule` reads off a program what they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from phalanx.jaxprs.row_masks import Masks
from phalanx.mesh.position import Variable, VectorLayout
from phalanx.mesh.space import RowSharding
from phalanx.mesh.total import Total

Term = tuple[str, str]
"""A variable's name and a part of its contribution: "density" or "jacobian"."""


@dataclass(frozen=True, kw_only=True)
class Latent(Variable):
    """A latent variable as one device holds it, on both scales."""

    shape: tuple[int, ...]
    support: str

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of its value on all devices, without padded rows."""
        return self.sharding.whole_shape(self.shape)


@dataclass(frozen=True)
class Shares:
    """What is local and what is replicated in a program on a mesh.

    Attributes:
        axes: mesh axes a sum over devices runs over; none when everything is replicated.
        latents: the latent variables.
        others: where the deterministic values live.
        terms: where each term of the log density lives, in program order.
        sizes: devices along each of `axes`.
        own_rows: variables that the program writes whole and a device holds its rows of, with how many there are.
        weights: by variable, how often its terms count, where that is not once: those of some rows stand for all.
        masks: terms that the program adds up itself over rows of which some are padded, as they are to be evaluated.
    """

    axes: tuple[str, ...]
    latents: tuple[Latent, ...]
    others: Mapping[str, RowSharding]
    terms: Mapping[Term, RowSharding]
    sizes: Mapping[str, int]
    own_rows: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    masks: Masks | None = field(default=None, repr=False, compare=False)

    @cached_property
    def layout(self) -> VectorLayout:
        """Layout of a position."""
        return VectorLayout.of(self.latents, self.sizes)

    @property
    def whole_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the latent variables on all devices, without padded rows."""
        return {v.name: v.whole_shape for v in self.latents}

    def weigh(self, term: Term, total: Total) -> Total:
        """This device's share of a term, given its sum over this device's rows: that, or 1/n where n compute it."""
        return total.over(self.replicas(term) / self.weights.get(term[0], 1.0))

    def replicas(self, term: Term) -> int:
        """How many devices compute a term."""
        return math.prod(self.sizes[axis] for axis in self.axes if axis not in self.terms[term].axes)


def named_axes(axes: Sequence[str]) -> str:
    """How messages name mesh axes."""
    return " and ".join(repr(axis) for axis in sorted(axes))
