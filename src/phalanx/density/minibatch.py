r"""Minibatches: a few rows in each step, whose terms stand for those of all rows.

A term that adds up over $N$ rows counts $N/B$ times when $B$ of them are seen, a prior counts once. Which is which is
read off the program as it is for devices: a batch is to the data what one device's rows are. Terms that see only how
many rows there are add up too, and the local variables of an amortised guide are weighted in model and guide alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, ShapeDtypeStruct, lax, random
from jax.sharding import Mesh, PartitionSpec

from phalanx.exactness.sharding_check import read_rows_apart
from phalanx.exactness.share_rule import read_shares
from phalanx.inputs.arguments import Arguments
from phalanx.mesh.space import RowSharding
from phalanx.programs.traced_program import TracedProgram

STREAM = 0x62617463
"""Sets the keys that rows are drawn with apart from those of particles."""

ROWS = "data"
"""The axis along which a batch is one part of many."""


@dataclass(frozen=True)
class Minibatch:
    """How rows are drawn.

    Attributes:
        size: rows of a batch.
        total: rows of the data.
        of_rows: which of the data's arrays have these rows.
        axes: mesh axes that the rows are spread over.
    """

    size: int
    total: int
    of_rows: tuple[bool, ...]
    axes: tuple[str, ...]

    argument: ClassVar[str] = "batch_size"
    """What the user has asked for it by."""

    @classmethod
    def of(cls, batch_size: Any, arguments: Arguments, mesh: Mesh) -> Minibatch:
        """Batches of so many rows.

        Raises:
            ValueError: when there are no rows, fewer than asked for, or they do not divide over the devices.
        """
        if not isinstance(batch_size, int | np.integer) or isinstance(batch_size, bool) or batch_size < 1:
            raise ValueError(f"batch_size must be a whole number of rows, at least 1; got {batch_size!r}.")
        shapes = arguments.whole_shapes()
        sharded = [s for s in arguments.shardings if s.axes]
        total = sharded[0].rows if sharded else max((s.shape[0] for s in shapes if s.shape), default=0)
        if not total:
            raise ValueError("batch_size: the data have no rows to choose from.")
        if batch_size > total:
            raise ValueError(f"batch_size={batch_size} is larger than the data, which have {total} rows.")
        of_rows = tuple(
            bool(s.axes) if sharded else bool(a.shape) and a.shape[0] == total
            for a, s in zip(shapes, arguments.shardings, strict=True)
        )
        axes = sharded[0].axes if sharded else ()
        if other := [s for s in sharded if (s.axes, s.rows) != (axes, total)]:
            raise ValueError(
                f"batch_size={batch_size}: of the data {total} rows are spread over {axes}, and {other[0].rows} over "
                f"{other[0].axes}; a batch is of one kind of rows. Leave the others unsharded, or look at all rows."
            )
        devices = _devices(axes, mesh)
        if total % devices or batch_size % devices:
            raise ValueError(
                f"batch_size={batch_size} of {total} rows: each of {devices} devices draws from its own rows, so both "
                f"numbers must be divisible by {devices}."
            )
        return cls(int(batch_size), total, of_rows, axes)

    @property
    def weight(self) -> float:
        """How often a row of a batch counts."""
        return self.total / self.size

    def rows(self, key: Array) -> Array:
        """Numbers of the rows that a device draws among its own, with replacement; or of all, where all are wanted.

        Which device follows from where it is called, as in `shard_map`; those that hold the same rows draw alike.
        """
        key, devices = random.fold_in(key, STREAM), 1
        if self.axes:
            key = random.fold_in(key, lax.axis_index(self.axes))
            devices = math.prod(lax.axis_size(axis) for axis in self.axes)
        if self.size == self.total:
            return jnp.arange(self.total // devices)
        return random.randint(key, (self.size // devices,), 0, self.total // devices)

    def take(self, arrays: Sequence[Array], rows: Array | slice) -> list[Array]:
        """The arrays with these rows, those without rows as they are."""
        return [array[rows] if wanted else array for array, wanted in zip(arrays, self.of_rows, strict=True)]

    def draw(self, arrays: Sequence[Array], key: Array, mesh: Mesh) -> list[Array]:
        """The arrays with the rows of one batch, drawn with replacement; each device draws from its own rows."""
        if not self.axes:
            return self.take(arrays, self.rows(key))
        spec = RowSharding(self.axes, self.total, self.total // _devices(self.axes, mesh)).spec()

        def local(words: Array, arrays: list[Array]) -> list[Array]:
            return self.take(arrays, self.rows(random.wrap_key_data(words)))

        specs = [spec if wanted else PartitionSpec() for wanted in self.of_rows]
        run = jax.shard_map(local, mesh=mesh, in_specs=(PartitionSpec(), specs), out_specs=specs, check_vma=False)
        return run(random.key_data(key), list(arrays))

    def _check_continuous(
        self, program: Callable[..., Any], batch: Arguments, sizes: Mapping[str, int], what: str
    ) -> None:
        """Refuse latent variables that no position moves, such as discrete ones."""
        found = TracedProgram.of_whole(program, batch, sizes, closely=True)
        for name in found.without_bijection:
            distribution = found.variables[name].distribution
            support = getattr(distribution, "support", None)
            kind = "is discrete" if support is not None and support.is_discrete else "has no density to move in"
            raise ValueError(
                f"{self.argument}: variable {name!r} of the {what} {kind} ({type(distribution).__name__}), and some "
                f"rows at a time can stand for all only where latent variables are continuous. Sum it out of the "
                f"model, as with numpyro.distributions.MixtureSameFamily; or give all rows at once, without "
                f"{self.argument}=, and a guide that draws it."
            )

    def terms_of_rows(self, program: Callable[..., Any], arguments: Arguments, what: str) -> set[str]:
        """The variables of a program whose terms add up over rows; `what` is what messages call it.

        Raises:
            ValueError: naming the variable, when a term neither adds up over rows nor is the same for any of them.
        """
        parts = max(2, self.total // self.size)
        sharding = RowSharding((ROWS,), parts * self.size, self.size)
        shapes = arguments.whole_shapes()
        stretched = tuple(
            ShapeDtypeStruct((parts * self.size, *a.shape[1:]), a.dtype) if wanted else a
            for a, wanted in zip(shapes, self.of_rows, strict=True)
        )
        shardings = tuple(sharding if wanted else RowSharding() for wanted in self.of_rows)
        batch = replace(arguments, arrays=stretched, shardings=shardings)
        sizes = {ROWS: parts, "model": 1}
        self._check_continuous(program, batch, sizes, what)
        try:
            whole = TracedProgram.of_whole(program, batch, sizes)
            shares, local = read_shares(program, batch, sizes, whole)
            apart = read_rows_apart(program, batch, sizes, shares, whole, local)
        except ValueError as error:
            raise ValueError(
                f"{self.argument}: the {what} cannot be learned from some rows at a time. {error}"
            ) from error
        if apart.check is not None and apart.check.names:
            raise ValueError(
                f"{self.argument}: that the rows of {', '.join(map(repr, apart.check.names))} in the {what} do not "
                f"mix, so that some of them can stand for all, cannot be proved from the program. Compute what looks "
                f"at all rows (a mean, a scale) once and pass it in as data, or give all rows at once."
            )
        return {name for (name, _), where in shares.terms.items() if where.axes}


class Estimate(NamedTuple):
    """How a log density is estimated from some rows.

    Attributes:
        minibatch: how rows are drawn.
        weights: how often the terms of a variable count; once, where nothing is said.
    """

    minibatch: Minibatch
    weights: Mapping[str, float]

    @classmethod
    def of(cls, minibatch: Minibatch, program: Callable[..., Any], arguments: Arguments, names: Iterable[str]) -> Self:
        """The estimate of a program's log density, whose latent variables have these names.

        Raises:
            ValueError: when one has an element for each row; or as `Minibatch.terms_of_rows`.
        """
        of_rows = minibatch.terms_of_rows(program, arguments, "model")
        if local := sorted(of_rows.intersection(names)):
            raise ValueError(
                f"{minibatch.argument}: variable {local[0]!r} has an element for each row, of which a batch moves "
                f"some and leaves the others where they are. Marginalise it, or use a kernel that looks at all rows, "
                f"such as phx.nuts()."
            )
        return cls(minibatch, dict.fromkeys(sorted(of_rows), minibatch.weight))


def _devices(axes: Sequence[str], mesh: Mesh) -> int:
    """How many devices have rows of their own."""
    return math.prod(mesh.shape[axis] for axis in axes)
