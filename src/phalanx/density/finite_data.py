"""Check for NaN and infinite numbers in data that make the log density non-finite, before a run is compiled.

A model may handle such numbers (a mask, an imputed latent variable, an infinite bound), so their presence alone is not
an error. The program is evaluated at several positions: with finite numbers in place of all others, and then with the
numbers of one array as given. The check names that array if the log density, its gradient or an observed value is
invalid at every position with the given numbers, but valid at one or more with finite ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from phalanx.density.minibatch import Minibatch
from phalanx.inputs.arguments import Arguments
from phalanx.language.tracing import Program
from phalanx.mesh.processes import agreed, to_host
from phalanx.mesh.virtual_mesh import alone
from phalanx.programs.unconstrained import Evaluation, run_unconstrained, to_unconstrained
from phalanx.programs.validity import VALUE, value_checks_of

if TYPE_CHECKING:
    from jaxtyping import Float

POSITIONS = 4
"""Number of positions at which the log density is evaluated: zero, and random positions."""

RADIUS = 2.0
"""Random positions are uniform on (-2, 2), as initial positions are."""

GRADIENT = ""
"""Key, instead of a variable's name, for the gradient of a finite log density."""


@dataclass(frozen=True)
class NonFinite:
    """Numbers of one array that are not finite: their counts, the index of the first, and its value."""

    nans: int
    infinities: int
    index: tuple[int, ...]
    value: float

    def describe(self, name: str) -> str:
        """Return the description for a message about the argument `name`."""
        kinds = [(self.nans, "NaN"), (self.infinities, "infinite")]
        counts = " and ".join(f"{count:,} {kind}" for count, kind in kinds if count)
        if not self.index:
            return f"{name} is {self.value}"
        where = f"{name}[{', '.join(map(str, self.index))}]"
        return f"{name} has {counts} value{'s' if self.nans + self.infinities > 1 else ''} (the first: {where})"


def check_finite_data(
    program: Program,
    arguments: Arguments,
    axes: Iterable[str],
    *,
    gradient: bool = True,
    any_latent: bool = False,
    minibatch: Minibatch | None = None,
) -> None:
    """Raise if NaN or infinite numbers in the data invalidate the log density, its gradient or an observed value.

    Finite data cost one pass over them, on their devices.

    Args:
        program: the model; its keyword arguments are the data.
        arguments: the data.
        axes: names of the mesh axes that the program may name.
        gradient: True to check the gradient, too.
        any_latent: True if latent variables may be discrete.
        minibatch: rule for drawing rows, if the program is evaluated on batches.

    Raises:
        ValueError: naming the argument, the number of invalid values, the first of them, and what to do.
    """
    suspects = find_not_finite(arguments.arrays)
    if not suspects:
        return
    evaluate = jax.jit(partial(_faults, program, arguments, tuple(axes), gradient, any_latent))
    whole = arguments.arrays
    rows = [s.rows if s.axes else None for s in arguments.shardings]
    mended = [mend(a) if i in suspects else a for i, a in enumerate(whole)]
    for i in suspects:
        place = locate(whole[i], rows[i])
        pair = [mended, [*mended[:i], whole[i], *mended[i + 1 :]]]
        if minibatch is not None and minibatch.of_rows[i]:
            begin = min(place.index[0], minibatch.total - minibatch.size)
            pair = [minibatch.take(arrays, slice(begin, begin + minibatch.size)) for arrays in pair]
        elif minibatch is not None:
            pair = [minibatch.take(arrays, slice(minibatch.size)) for arrays in pair]
        right, wrong = (_everywhere(evaluate(arrays)) for arrays in pair)
        if guilty := [name for name, is_wrong in wrong.items() if is_wrong and not right[name]]:
            name = arguments.names[i]
            raise ValueError(f"data: {place.describe(name)}{_consequence(name, place, guilty)}")


def locate(array: Array | np.ndarray, rows: int | None = None) -> NonFinite:
    """Return the numbers of an array that are not finite; in a padded array only the first `rows` rows count.

    Only the counts, and the row with the first such number, leave the devices of a sharded array.
    """
    nans, infinities, first = (int(to_host(x)) for x in _counts(array, rows))
    row = array[first] if np.ndim(array) else array
    row = to_host(row)
    rest = np.unravel_index(int(np.argmax(~np.isfinite(row))), row.shape) if row.ndim else ()
    index = (first, *(int(i) for i in rest)) if np.ndim(array) else ()
    return NonFinite(nans, infinities, index, float(row[rest]))


def find_not_finite(arrays: Sequence[Array | np.ndarray]) -> list[int]:
    """Return the indices of the arrays that hold NaN or infinite values, after one pass over each on its devices."""
    floats = [i for i, a in enumerate(arrays) if jnp.issubdtype(a.dtype, jnp.floating) and a.size]
    on_devices = [i for i in floats if isinstance(arrays[i], Array)]
    finite_by_number = dict(zip(on_devices, _are_finite([arrays[i] for i in on_devices]), strict=True))
    for i in floats:
        if i not in finite_by_number:
            array = arrays[i]
            # Minimum and maximum reveal a NaN or an infinity without a temporary array.
            with np.errstate(invalid="ignore"):
                finite_by_number[i] = np.isfinite(np.min(array)) and np.isfinite(np.max(array))
    # Every process must decide the same: otherwise one would wait for the others for ever.
    finite = agreed(np.array([bool(to_host(finite_by_number[i])) for i in floats], bool)) if floats else []
    return [i for i, is_finite in zip(floats, finite, strict=True) if not is_finite]


@jax.jit
def _are_finite(arrays: Sequence[Array]) -> list[Array]:
    return [jnp.isfinite(array).all() for array in arrays]


@partial(jax.jit, static_argnames="rows")
def _counts(array: Array, rows: int | None) -> tuple[Array, Array, Array]:
    """Return the counts of NaN and of infinite numbers, and the first row with one of them."""
    array = array if rows is None else array[:rows]
    wrong = jnp.any(~jnp.isfinite(array), axis=tuple(range(1, array.ndim)))
    return jnp.sum(jnp.isnan(array)), jnp.sum(jnp.isinf(array)), jnp.argmax(wrong)


@jax.jit
def mend(array: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the array with its non-finite values replaced by the largest finite value of the column."""
    finite = jnp.isfinite(array)
    finite_or_lowest = jnp.where(finite, array, -jnp.inf)
    largest = jnp.max(finite_or_lowest, axis=0, keepdims=True) if array.ndim else finite_or_lowest
    return jnp.where(finite, array, jnp.where(jnp.isfinite(largest), largest, jnp.ones_like(largest)))


def _faults(
    program: Program,
    arguments: Arguments,
    axes: tuple[str, ...],
    gradient: bool,
    any_latent: bool,
    arrays: Sequence[Array],
) -> dict[str, Array]:
    """Return for each variable whether it is invalid at each position, `(position,)`, and the same for GRADIENT."""
    # A minibatch has fewer rows than the data, without padding.
    whole = [a[: s.rows] if s.axes else a for a, s in zip(arrays, arguments.shardings, strict=True)]
    data = arguments.layout.join(whole)

    def run(position: Mapping[str, Array] | None) -> Evaluation:
        return run_unconstrained(program, position, data, any_latent=any_latent)

    def at(position: Mapping[str, Array]) -> dict[str, Array]:
        def total(moving: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
            evaluation = run({**position, **moving})
            terms = evaluation.terms()
            return sum(map(jnp.sum, terms.values()), jnp.zeros(())), _by_variable(evaluation)

        moving = {name: value for name, value in position.items() if jnp.issubdtype(value.dtype, jnp.floating)}
        if not gradient or not moving:
            return total(moving)[1]
        (height, faults), slope = jax.value_and_grad(total, has_aux=True)(moving)
        steep = ~jnp.stack([jnp.isfinite(leaf).all() for leaf in slope.values()]).all()
        return {**faults, GRADIENT: jnp.isfinite(height) & steep}

    def look() -> dict[str, Array]:
        start = getattr(program, "start", None)
        if start is not None:  # the log density of a function may be improper elsewhere
            return {name: fault[None] for name, fault in at(to_unconstrained(program, start, data)).items()}
        zero = run(None).position
        if not zero:  # all variables are observed, as for maximum likelihood
            return {name: fault[None] for name, fault in at({}).items()}
        return lax.map(at, {name: _positions(name, value) for name, value in zero.items()})

    return alone(look, axes)


def _positions(name: str, zero: Array) -> Array:
    """Return zero and random values of a variable, `(position, ...)`."""
    if not jnp.issubdtype(zero.dtype, jnp.floating):
        return jnp.broadcast_to(zero, (POSITIONS, *zero.shape))
    key = random.fold_in(random.key(0), sum(name.encode()))
    random_ones = random.uniform(key, (POSITIONS - 1, *zero.shape), zero.dtype, -RADIUS, RADIUS)
    return jnp.concatenate([zero[None], random_ones])


def _by_variable(evaluation: Evaluation) -> dict[str, Array]:
    """Return for each variable whether its term of the log density is not finite or an observed value is invalid."""
    faults: dict[str, Array] = {}
    for (name, _), term in evaluation.terms().items():
        is_bad = ~jnp.isfinite(term).all()
        faults[name] = faults[name] | is_bad if name in faults else is_bad
    for (name, parameter), check in value_checks_of(evaluation).items():
        if parameter == VALUE:
            faults[name] |= jnp.any(check.bad)
    return faults


def _everywhere(faults: Mapping[str, Array]) -> dict[str, bool]:
    return {name: bool(to_host(fault).all()) for name, fault in faults.items()}


def _consequence(name: str, bad: NonFinite, guilty: Sequence[str]) -> str:
    if guilty == [GRADIENT]:
        return (
            f". The log density is finite, but its gradient is not: jnp.where selects a value, but the derivatives of "
            f"both branches are computed. {_drop(name, bad)}; or give finite numbers instead, "
            f"np.nan_to_num({name}), and the mask as another argument."
        )
    variables = " and ".join(repr(name) for name in guilty if name != GRADIENT)
    return (
        f". With it the log density of variable {variables} is not finite at any starting position, and with a finite "
        f"number instead it is. {_drop(name, bad)}; or mask them, as in dist.Normal(...).mask("
        f"np.isfinite({name})) with np.nan_to_num({name}) as data; or impute missing entries with phx.mcmc or "
        f'phx.fit(..., missing="impute"), for which a variable must observe them, as in {name} = phx.sample("{name}", '
        f"distribution, obs={name}); the model then uses the value that phx.sample returns."
    )


def _drop(name: str, bad: NonFinite) -> str:
    if not bad.index:
        return "Give a finite number"
    others = ", ".join(map(str, range(1, len(bad.index))))
    rows = f".all(({others}))" if len(bad.index) > 2 else f".all({others})" if others else ""
    return f"Drop such rows from all arguments: those where np.isfinite({name}){rows} is False"
