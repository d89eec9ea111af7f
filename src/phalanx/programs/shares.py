"""Shares of a program: its latent variables and terms, with their shardings.

The shares of all devices add up to the log density; `exactness.share_rule` determines them from the program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jax import Array

from phalanx.distributions.row_sums import total_of
from phalanx.jaxprs.row_masks import Masks
from phalanx.mesh.position import Variable, VectorLayout
from phalanx.mesh.space import RowSharding
from phalanx.mesh.specs import PyTree
from phalanx.mesh.total import Total
from phalanx.programs.padded_terms import PaddedTerms, Term


@dataclass(frozen=True, kw_only=True)
class Latent(Variable):
    """A latent variable on one device, with its shape on both scales."""

    shape: tuple[int, ...]
    support: str

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """Shape of the value in the whole, without padded rows."""
        return self.sharding.whole_shape(self.shape)

    @property
    def is_of_points(self) -> bool:
        """True for angles, whose unconstrained values are points in the plane, along a last dimension of size 2."""
        return "Circular(" in self.support and self.unconstrained_shape == (*self.shape, 2)


@dataclass(frozen=True)
class Shares:
    """Variables and terms of a program on a mesh, local or replicated.

    Attributes:
        axes: mesh axes of the sum over devices; empty if everything is replicated.
        latents: the latent variables.
        others: shardings of the deterministic values.
        terms: shardings of the terms of the log density, in program order.
        sizes: devices along each of `axes`.
        own_rows: number of rows of the variables that the program writes whole and each device has some rows of.
        weights: weights of the terms by variable, if not 1: terms of a batch are weighted up to all rows.
        masks: evaluation of the terms that the program itself sums over rows, some of which are padded, with masks.
        padded: terms of this kind that cannot be masked, less the part of their padded rows.
    """

    axes: tuple[str, ...]
    latents: tuple[Latent, ...]
    others: Mapping[str, RowSharding]
    terms: Mapping[Term, RowSharding]
    sizes: Mapping[str, int]
    own_rows: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    masks: Masks | None = field(default=None, repr=False, compare=False)
    padded: PaddedTerms | None = field(default=None, repr=False)

    @cached_property
    def layout(self) -> VectorLayout:
        """Layout of a position."""
        return VectorLayout.of(self.latents, self.sizes)

    @property
    def whole_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the latent variables in the whole, without padded rows."""
        return {v.name: v.whole_shape for v in self.latents}

    @property
    def summed_by_program(self) -> tuple[Term, ...]:
        """Terms that the program itself sums over rows, some of which are padded."""
        masked = () if self.masks is None else tuple(self.masks.outputs)
        return masked if self.padded is None else (*masked, *self.padded.terms)

    @property
    def of_likelihood(self) -> tuple[Term, ...]:
        """Terms of the likelihood: of observed variables, of factors, and of variables with a fixed value."""
        latents = {latent.name for latent in self.latents}
        return tuple(term for term in self.terms if term[0] not in latents)

    def masked_totals(self, position: PyTree, arrays: Sequence[Array]) -> dict[Term, Total]:
        """Return the terms that are evaluated with masks, summed over this device's rows."""
        terms = {} if self.masks is None else self.masks.terms(position, arrays)
        return {term: total_of(self.terms[term].keep_rows(value)) for term, value in terms.items()}

    def weigh(self, term: Term, total: Total) -> Total:
        """Return this device's share of a term: its sum over this device's rows, divided by the number of replicas."""
        return total.over(self.replicas(term) / self.weights.get(term[0], 1.0))

    def replicas(self, term: Term) -> int:
        """Return the number of devices that compute a term."""
        return math.prod(self.sizes[axis] for axis in self.axes if axis not in self.terms[term].axes)


def named_axes(axes: Sequence[str]) -> str:
    """Return mesh axes as text for a message."""
    return " and ".join(repr(axis) for axis in sorted(axes))
