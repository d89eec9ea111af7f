"""Sites of a program on a mesh: its latent variables, values and terms, with the rows that a device has of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from phalanx.mesh.position import Variable, VectorLayout
from phalanx.mesh.row_sharding import GLOBAL, RowSharding
from phalanx.placements import DeviceRows

Term = tuple[str, str]
"""A variable, and the part of the log density: "density" or "jacobian"."""


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

    def on_device(self, sharding: RowSharding) -> Latent:
        """Return the variable with its rows sharded over devices."""
        if not sharding.axes:
            return self
        rows = sharding.local_rows
        return replace(
            self,
            sharding=sharding,
            shape=(rows, *self.shape[1:]),
            unconstrained_shape=(rows, *self.unconstrained_shape[1:]),
        )


@dataclass(frozen=True)
class Sites:
    """Variables and terms of a program on a mesh.

    Attributes:
        latents: the latent variables.
        others: shardings of the deterministic values.
        terms: the terms of the log density, in program order.
        arrays: shardings of the data's arrays.
        sizes: devices along each mesh axis but that of the chains.
        names_axes: True if the program has collectives of its own; each then sees all rows, as on one device.
        observations: shardings of the log densities of observations, by observed variable.
        weights: weights of the terms by variable, if not 1: terms of a batch are weighted up to all rows.
    """

    latents: tuple[Latent, ...]
    others: Mapping[str, RowSharding]
    terms: tuple[Term, ...]
    arrays: tuple[RowSharding, ...]
    sizes: Mapping[str, int]
    names_axes: bool = False
    observations: Mapping[str, RowSharding] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def layout(self) -> VectorLayout:
        """Layout of a position."""
        return VectorLayout.of(self.latents, {axis: size for axis, size in self.sizes.items() if size > 1})

    @cached_property
    def rows(self) -> DeviceRows:
        """Evaluation of functions of whole arrays on one device's rows."""
        return DeviceRows(self.sizes, frozenset((*self.arrays, *self.positions.values())))

    @cached_property
    def is_divided(self) -> bool:
        """True if the program is evaluated by placements: some rows are on several devices, or it has collectives."""
        several = [axis for axis, size in self.sizes.items() if size > 1]
        shardings = (*self.arrays, *self.positions.values())
        return bool(several) and (self.names_axes or any(set(s.axes).intersection(several) for s in shardings))

    @property
    def positions(self) -> dict[str, RowSharding]:
        """Shardings of the latent variables."""
        return {latent.name: latent.sharding for latent in self.latents}

    @property
    def values(self) -> dict[str, RowSharding]:
        """Shardings of the latent variables, then of the deterministic values."""
        return {**self.positions, **self.others}

    @property
    def whole_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the latent variables in the whole, without padded rows."""
        return {latent.name: latent.whole_shape for latent in self.latents}

    @property
    def of_likelihood(self) -> tuple[Term, ...]:
        """Terms of the likelihood: of observed variables, of factors, and of variables with a fixed value."""
        return tuple(term for term in self.terms if term[0] not in self.positions)

    @cached_property
    def on_one_device(self) -> Sites:
        """The same sites as on one device, which has all rows."""
        latents = [
            replace(
                latent, sharding=GLOBAL, shape=latent.whole_shape, unconstrained_shape=latent.whole_unconstrained_shape
            )
            for latent in self.latents
        ]
        return replace(
            self,
            latents=tuple(latents),
            others=dict.fromkeys(self.others, GLOBAL),
            arrays=(GLOBAL,) * len(self.arrays),
            observations={},
            sizes={},
        )


def named_axes(axes: Sequence[str]) -> str:
    """Return mesh axes as text for a message."""
    return " and ".join(repr(axis) for axis in sorted(axes))
