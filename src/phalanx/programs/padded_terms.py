"""Terms that a program adds up over rows itself, without the part of padded rows.

On a device some of whose rows are padding, a term that adds up over rows is its value on all rows of the device, less
its value on one padded row for each of them: padded rows are equal. The numeric test of `exactness.row_check` compares
the result with the whole, so that a term that does not add up over rows is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct

from phalanx.mesh.space import RowSharding
from phalanx.mesh.specs import PyTree

Term = tuple[str, str]
"""A variable's name and a part of its contribution: "density" or "jacobian"."""

FILL = 0.5
"""Unconstrained value of padded rows, any at which terms are finite and smooth; at zero a norm has no derivative."""


@dataclass(frozen=True)
class PaddedTerms:
    """Terms that a program adds up over rows, some of which are padded.

    Attributes:
        terms: the terms.
        rows: the sharding of the rows.
        latents: names of the latent variables that have these rows.
        arrays: True for each array of the data that has these rows.
    """

    terms: tuple[Term, ...]
    rows: RowSharding
    latents: frozenset[str]
    arrays: tuple[bool, ...]

    def filled(self, position: Mapping[str, Array]) -> dict[str, Array]:
        """Return a position of this device with `FILL` in padded rows, which are then equal."""
        real = self.rows.real_rows()
        if real is None:
            return dict(position)

        def fill(rows: Array) -> Array:
            return jnp.where(real.reshape(-1, *(1,) * (rows.ndim - 1)), rows, jnp.asarray(FILL, rows.dtype))

        return {name: fill(x) if name in self.latents else x for name, x in position.items()}

    def one_row(self, position: Mapping[str, Array], arrays: Sequence[Array]) -> tuple[dict[str, Array], list[Array]]:
        """Return the last row of a filled position and of the data: a padded one if the device has any."""
        of_position = {name: x[-1:] if name in self.latents else x for name, x in position.items()}
        return of_position, [x[-1:] if has_rows else x for x, has_rows in zip(arrays, self.arrays, strict=True)]

    def shapes_of_one_row(self, shapes: Sequence[ShapeDtypeStruct]) -> list[ShapeDtypeStruct]:
        """Return the shapes of the data with a single row, given those on a device."""
        return shapes_of_one_row(shapes, self.arrays)

    def without_padding(self, sums: Mapping[Term, PyTree], on_one_row: Mapping[Term, Array]) -> dict[Term, PyTree]:
        """Return sums of terms on this device without the part of padded rows, given the terms on one of them."""
        real = self.rows.real_rows()
        if real is None:
            return dict(sums)
        count = self.rows.local_rows - jnp.sum(real)

        def part(term: Array) -> Array:
            value = jnp.sum(term)
            # a term that is not finite in the last row stays so
            return jnp.where((count > 0) & jnp.isfinite(value), count * value, 0.0)

        return {t: x - part(on_one_row[t]) if t in self.terms else x for t, x in sums.items()}

    def corrected(
        self, run: Callable[..., tuple[Any, Any]], run_row: Callable[..., tuple[Any, Any]]
    ) -> Callable[..., tuple[Any, Any]]:
        """Return `run(position, arrays, *more)`, which gives terms and other values, with these terms summed.

        `run_row` is the same function of one row.
        """

        def run_without_padding(position: PyTree, arrays: PyTree, *more: PyTree) -> tuple[PyTree, PyTree]:
            position = self.filled(position)
            terms, others = run(position, arrays, *more)
            row, _ = run_row(*self.one_row(position, arrays), *more)
            sums = {t: jnp.sum(x) if t in self.terms else x for t, x in terms.items()}
            return self.without_padding(sums, row), others

        return run_without_padding


def shapes_of_one_row(shapes: Sequence[ShapeDtypeStruct], has_rows: Sequence[bool]) -> list[ShapeDtypeStruct]:
    """Return shapes with a single row where `has_rows` is True."""
    return [
        ShapeDtypeStruct((1, *s.shape[1:]), s.dtype) if of_rows else s
        for s, of_rows in zip(shapes, has_rows, strict=True)
    ]
