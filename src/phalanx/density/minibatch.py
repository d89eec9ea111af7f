r"""Minibatches: estimates of a log density from a few rows in each step.

A term that adds up over $N$ rows is weighted by $N/B$ if a batch has $B$ of them; a prior has weight one. The rules of
placement distinguish them: two batches are treated like the rows of two devices. A term adds up over rows if it is the
sum of what the devices compute, without a message. Terms that depend only on the number of rows add up, too. The local
variables of an amortised guide have the same weight in model and guide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, ShapeDtypeStruct, lax, random
from jax.extend.core import ClosedJaxpr, Literal, Var
from jax.sharding import Mesh
from jax.typing import ArrayLike

from phalanx.density.site_shardings import read_sites
from phalanx.inputs.arguments import Arguments
from phalanx.jaxprs.walking import all_equations, constants_within
from phalanx.mesh.row_sharding import RowSharding
from phalanx.mesh.virtual_mesh import alone
from phalanx.programs.sites import Sites, Term
from phalanx.programs.traced_program import TracedProgram

STREAM = 0x62617463
"""Number folded into keys, so that rows and particles have different random numbers."""

ROWS = "data"
"""Mesh axis of batches: a program is placed with one batch on each of two devices."""

AXES_OF_ONE = {ROWS: 1, "model": 1}
"""Devices along the mesh axes that a program may name, on one device."""


@dataclass(frozen=True)
class Minibatch:
    """Rule for drawing the rows of a batch.

    Attributes:
        size: number of rows of a batch.
        total: number of rows of the data.
        of_rows: True for each array of the data that has these rows.
        axes: mesh axes that the rows are sharded over.
        is_streamed: True if the data are one batch of a stream, used whole; else rows are drawn from them.
        weights: weights of the terms by variable, in an estimate of a log density; 1 if left out.
    """

    size: int
    total: int
    of_rows: tuple[bool, ...]
    axes: tuple[str, ...]
    is_streamed: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def argument(self) -> str:
        """Name of the user's argument that asks for batches."""
        return "num_rows" if self.is_streamed else "batch_size"

    @classmethod
    def of(cls, batch_size: object, arguments: Arguments, mesh: Mesh) -> Minibatch:
        """Return batches of `batch_size` rows.

        Raises:
            ValueError: when the data have fewer rows, or rows do not divide evenly over the devices.
        """
        if not isinstance(batch_size, int | np.integer) or isinstance(batch_size, bool) or batch_size < 1:
            raise ValueError(f"batch_size must be a whole number of rows, at least 1; got {batch_size!r}.")
        shapes = arguments.whole_shapes()
        sharded_rows = [s for s in arguments.shardings if s.axes]
        total = sharded_rows[0].rows if sharded_rows else max((s.shape[0] for s in shapes if s.shape), default=0)
        if not total:
            raise ValueError("batch_size: the data have no rows to choose from.")
        if batch_size > total:
            raise ValueError(f"batch_size={batch_size} is larger than the data, which have {total} rows.")
        of_rows = tuple(
            bool(s.axes) if sharded_rows else bool(a.shape) and a.shape[0] == total
            for a, s in zip(shapes, arguments.shardings, strict=True)
        )
        axes = sharded_rows[0].axes if sharded_rows else ()
        if other := [s for s in sharded_rows if (s.axes, s.rows) != (axes, total)]:
            raise ValueError(
                f"batch_size={batch_size}: {total} rows of the data are sharded over {axes}, and {other[0].rows} over "
                f"{other[0].axes}; a batch has one kind of rows. Leave the others unsharded, or use all rows."
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
        """Weight of a row of a batch."""
        return self.total / self.size

    def rows(self, key: Array) -> Array:
        """Return the indices of the rows that a device draws among its own, with replacement; or of all its rows.

        Call it inside `shard_map` if rows are sharded. Devices that hold the same rows draw the same.
        """
        if not self.axes:
            return self._chosen(random.fold_in(key, STREAM), 1)
        devices = math.prod(lax.axis_size(axis) for axis in self.axes)
        return self._chosen(self._key_of(key, lax.axis_index(self.axes)), devices)

    def _key_of(self, key: Array, device: ArrayLike) -> Array:
        return random.fold_in(random.fold_in(key, STREAM), device)

    def _chosen(self, key: Array, devices: int) -> Array:
        if self.size == self.total:
            return jnp.arange(self.total // devices)
        return random.randint(key, (self.size // devices,), 0, self.total // devices)

    def take(self, arrays: Sequence[Array], rows: Array | slice) -> list[Array]:
        """Return the arrays with these rows only; arrays without rows are unchanged."""
        return [array[rows] if has_rows else array for array, has_rows in zip(arrays, self.of_rows, strict=True)]

    def shardings(self, of_data: Sequence[RowSharding]) -> list[RowSharding]:
        """Return the sharding of a batch, given that of the data."""
        return [
            replace(s, rows=self.size, local_rows=self.size * s.local_rows // s.rows) if has_rows and s.axes else s
            for s, has_rows in zip(of_data, self.of_rows, strict=True)
        ]

    def draw(self, arrays: Sequence[Array], key: Array, mesh: Mesh) -> list[Array]:
        """Return the arrays with one batch: rows that each device draws from its own, or all if they are streamed."""
        if self.is_streamed:
            return list(arrays)
        if not self.axes:
            return self.take(arrays, self.rows(key))
        devices = _devices(self.axes, mesh)
        rows = jax.vmap(lambda device: self._chosen(self._key_of(key, device), devices))(jnp.arange(devices))

        def chosen(array: Array) -> Array:
            by_device = array.reshape(devices, -1, *array.shape[1:])
            return jax.vmap(lambda part, rows: part[rows])(by_device, rows).reshape(self.size, *array.shape[1:])

        return [chosen(array) if has_rows else array for array, has_rows in zip(arrays, self.of_rows, strict=True)]

    def _check_continuous(
        self, program: Callable[..., Any], batch: Arguments, sizes: Mapping[str, int], what: str
    ) -> None:
        """Raise if a latent variable has no unconstrained position, such as a discrete one."""
        whole = TracedProgram.of_whole(program, batch, sizes, checking=True)
        for name in whole.without_bijection:
            distribution = whole.variables[name].distribution
            support = getattr(distribution, "support", None)
            kind = (
                "is discrete"
                if support is not None and support.is_discrete
                else "has no bijection from an unconstrained scale"
            )
            raise ValueError(
                f"{self.argument}: variable {name!r} of the {what} {kind} ({type(distribution).__name__}), and batches "
                f"of rows need continuous latent variables. Sum it out of the model with phx.marginalize; or give "
                f"all rows at once, without {self.argument}=, and a guide that draws it."
            )

    def estimating(self, program: Callable[..., Any], arguments: Arguments, names: Iterable[str]) -> Minibatch:
        """Return batches that estimate a program's log density, whose latent variables have these names.

        Raises:
            ValueError: when one has an element for each row; or as `terms_of_rows`.
        """
        of_rows = self.terms_of_rows(program, arguments, "model")
        if local := sorted(of_rows.intersection(names)):
            raise ValueError(
                f"{self.argument}: variable {local[0]!r} has an element for each row, and a batch moves only some of "
                f"them. Marginalise it, or use a kernel that uses all rows, such as phx.nuts()."
            )
        return replace(self, weights=dict.fromkeys(sorted(of_rows), self.weight))

    def terms_of_rows(self, program: Callable[..., Any], arguments: Arguments, what: str) -> set[str]:
        """Return the variables of a program whose terms add up over rows; messages call the program `what`.

        Raises:
            ValueError: naming the variable, when a term neither adds up over rows nor is independent of them.
        """
        batches = [self._batches(arguments, count) for count in (1, 2)]
        self._check_continuous(program, batches[0], AXES_OF_ONE, what)
        try:
            one, two = (TracedProgram.of_whole(program, batch, AXES_OF_ONE) for batch in batches)
            sites = read_sites(batches[1], {**AXES_OF_ONE, ROWS: 2}, two)
            kinds = {term: self._kind(term, sites, batches[1], one, two) for term in two.terms}
        except ValueError as error:
            raise ValueError(
                f"{self.argument}: the {what} cannot be learned from some rows at a time. {error}"
            ) from error
        for (name, _), kind in kinds.items():
            if kind is None:
                raise ValueError(self._refusal(name, two, batches[1], what))
        return {name for (name, _), kind in kinds.items() if kind}

    def _batches(self, arguments: Arguments, count: int) -> Arguments:
        """Return arguments with the shapes of `count` batches, sharded as if each batch were on a device of its own."""
        sharding = RowSharding((ROWS,), count * self.size, self.size)
        shapes = tuple(
            ShapeDtypeStruct((count * self.size, *a.shape[1:]), a.dtype) if has_rows else a
            for a, has_rows in zip(arguments.whole_shapes(), self.of_rows, strict=True)
        )
        shardings = tuple(sharding if has_rows else RowSharding() for has_rows in self.of_rows)
        return replace(arguments, arrays=shapes, shardings=shardings)

    def _kind(self, term: Term, sites: Sites, batch: Arguments, one: TracedProgram, two: TracedProgram) -> bool | None:
        """Return True if a term adds up over rows, False if it is independent of them, None otherwise.

        Args:
            term: the term.
            sites: the sites of two batches, on two devices.
            batch: the two batches.
            one: trace of the program on one batch.
            two: trace of the program on two batches.
        """
        inputs = sites.positions, list(batch.shardings)
        term_rows = sites.rows.inspect(two.only(term), inputs, sites.layout.shapes(), list(batch.local_shapes()))
        if term_rows.messages:
            return None
        if _have_same_numbers(one.only_jaxpr(term), two.only_jaxpr(term)):
            return bool(term_rows.is_sum)
        ratios = [ratios for number in range(3) if (ratios := _ratios(one, two, term, number)) is not None]
        possible = set.intersection(*ratios) if ratios else set()
        if 1 in possible and not term_rows.is_sum:
            return False
        return True if 2 in possible else None

    def _refusal(self, name: str, whole: TracedProgram, batch: Arguments, what: str) -> str:
        if alone := _read_by_number(whole, self.of_rows, batch):
            return (
                f"{self.argument}: the {what} reads single rows of {', '.join(map(repr, alone))} by their number, "
                f"as in {alone[0]}[0], and in a batch these are other rows. Pass such a value in as a number of "
                f"its own, or give all rows at once."
            )
        return (
            f"{self.argument}: the rows of {name!r} mix in the {what}, or depend on their number, so that a batch "
            f"cannot stand for all rows. Compute what depends on all rows (a mean, a scale) once and pass it in as "
            f"data, or give all rows at once."
        )


def _have_same_numbers(one: ClosedJaxpr, two: ClosedJaxpr) -> bool:
    """Return whether two programs contain the same numbers, some of which may be computed from the number of rows."""
    pairs = itertools.zip_longest(_numbers_in(one), _numbers_in(two))
    return all(a is b or np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def _numbers_in(program: ClosedJaxpr) -> list[Any]:
    literals = [a.val for e in all_equations(program) for a in e.invars if isinstance(a, Literal)]
    return [*literals, *constants_within(program)]


def _ratios(one: TracedProgram, two: TracedProgram, term: Term, number: int) -> set[int] | None:
    """Return whether a term of two equal batches may be once or twice that of one; None if it is not finite.

    Zero is once and twice zero.
    """

    def value(traced_program: TracedProgram, copies: int) -> np.ndarray:
        def filled(shape: ShapeDtypeStruct, first: ShapeDtypeStruct) -> Array:
            random_numbers = np.random.default_rng(number)
            if number and jnp.issubdtype(shape.dtype, jnp.floating):
                values = random_numbers.uniform(0.05, 0.95, first.shape)
            else:
                values = np.ones(first.shape)
            repeats = (copies, *[1] * (values.ndim - 1)) if shape.shape != first.shape else [1] * values.ndim
            return jnp.asarray(np.tile(values, repeats), shape.dtype)

        position = jax.tree.map(filled, traced_program.position, one.position)
        arrays = [filled(*pair) for pair in zip(traced_program.shapes, one.shapes, strict=True)]
        return np.asarray(alone(lambda: traced_program.only(term)(position, arrays), AXES_OF_ONE))

    of_one = value(one, 1)
    of_two = value(two, 2)
    if not np.isfinite(of_one):
        return None
    return {ratio for ratio in (1, 2) if np.allclose(of_two, ratio * of_one, rtol=1e-4, atol=0.0)}


def _read_by_number(whole: TracedProgram, of_rows: Sequence[bool], arguments: Arguments) -> list[str]:
    """Return the arguments with rows of which a program reads a single one."""
    columns = {
        var: name
        for var, name, has_rows in zip(whole.at_zero.jaxpr.invars, arguments.names, of_rows, strict=True)
        if has_rows
    }
    names = [
        columns[eqn.invars[0]]
        for eqn in whole.at_zero.jaxpr.eqns
        if eqn.primitive.name in ("slice", "dynamic_slice", "gather")
        and isinstance(eqn.invars[0], Var)
        and eqn.invars[0] in columns
        and eqn.outvars[0].aval.shape[:1] in ((), (1,))
    ]
    return list(dict.fromkeys(names))


def _devices(axes: Sequence[str], mesh: Mesh) -> int:
    """Return the number of devices that have rows of their own."""
    return math.prod(mesh.shape[axis] for axis in axes)
