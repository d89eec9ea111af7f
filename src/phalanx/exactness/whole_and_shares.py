"""A program in the whole and as shares of devices: both evaluations, and a comparison of terms and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

from phalanx.exactness.row_sample import RowSample
from phalanx.inputs.arguments import Arguments
from phalanx.jaxprs.branches import MOST_SITES, Branches
from phalanx.jaxprs.walking import extent
from phalanx.language.tracing import Program
from phalanx.mesh.position import add_shares
from phalanx.mesh.space import RowSharding
from phalanx.mesh.specs import PyTree
from phalanx.mesh.virtual_mesh import all_rows, on_virtual_mesh, rows_here
from phalanx.programs.declared_axis import giving_own_rows
from phalanx.programs.shares import Shares, Term, named_axes
from phalanx.programs.traced_program import TracedProgram
from phalanx.programs.unconstrained import Evaluation, run_unconstrained

WIDEST = 1 << 26
"""Most elements of an intermediate array."""

FORCED_NUMBERS, FEWEST_PLANS = 2**23, 4
"""Most numbers in all evaluations with forced branches together; and the least number of such evaluations."""

TOGETHER = 64
"""Positions that one call evaluates, one after the other."""

Position = dict[str, np.ndarray]


class TooLarge(Exception):
    """The test would need more memory than allowed."""


@dataclass
class Unproved:
    """Terms and values of a program whose shares are not proved to add up.

    Attributes:
        program, sizes, shares: the program, the devices along each mesh axis, and the shares to test.
        terms, others: terms of the log density, and other values, that are not proved.
    """

    program: Program
    sizes: Mapping[str, int]
    shares: Shares
    terms: tuple[tuple[str, str], ...]
    others: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The variables that are not proved."""
        return list(dict.fromkeys([*(name for name, _ in self.terms), *self.others]))

    @property
    def shardings(self) -> dict[str, RowSharding]:
        """Shardings of the latent variables."""
        return {latent.name: latent.sharding for latent in self.shares.latents}


class Differs(Exception):
    """The devices' shares do not add up to the whole."""


class _Forced(NamedTuple):
    """Both evaluations with forced branches."""

    branches: Branches
    whole: Callable[..., Any]
    devices: Callable[..., Any]


@dataclass(frozen=True)
class WholeAndShares:
    """Both evaluations, compiled for samples of one size; `forced` takes codes of branches, see `jaxprs.branches`."""

    unproved: Unproved
    whole: Callable[..., Any]
    devices: Callable[..., Any]
    shapes: Mapping[str, Any]
    step: float
    rounding: float
    rows: int
    forced: _Forced

    @classmethod
    def of(cls, check: Unproved, arguments: Arguments, sample: RowSample, shardings: Sequence[RowSharding]) -> Self:
        """Compile both for a sample of the rows; raise `TooLarge` if the model makes too large an array there."""
        shares, sizes = check.shares, check.sizes
        program = giving_own_rows(check.program, shares.own_rows)
        of_latents = {name: sample.sharding(sharding) for name, sharding in check.shardings.items()}
        local_terms = {term: _resized(sample, sharding) for term, sharding in shares.terms.items()}
        resized = replace(shares, terms=local_terms)

        def run(position: PyTree, arrays: PyTree, *codes: PyTree) -> tuple[PyTree, PyTree]:
            found = run_unconstrained(program, position, arguments.layout.join(arrays))
            return found.terms(), _values(found, check.others)

        def differentiated(run: Callable[..., Any], share: Callable[..., Any], *given: PyTree) -> tuple[PyTree, PyTree]:
            """Return each term and its sum of absolute entries, as `share` adds them, with the gradient; and others."""

            def total(position: PyTree, *rest: PyTree, term: Term) -> tuple[PyTree, PyTree]:
                values = run(position, *rest)[0][term]
                return share(term, values, jnp.sum), share(term, values, lambda v: jnp.sum(jnp.abs(v)))

            of = {term: jax.value_and_grad(partial(total, term=term), has_aux=True)(*given) for term in check.terms}
            return of, run(*given)[1]

        def in_whole(run: Callable[..., Any], *given: PyTree) -> PyTree:
            return differentiated(run, lambda _, values, add: add(values), *given)

        def on_device(
            run: Callable[..., Any], run_row: Callable[..., Any], position: PyTree, arrays: PyTree, *codes: PyTree
        ) -> PyTree:
            here = {name: rows_here(leaf, of_latents[name]) for name, leaf in position.items()}
            mine = [rows_here(leaf, sharding) for leaf, sharding in zip(arrays, shardings, strict=True)]

            def share(term: Term, values: Array, add: Callable[..., Any]) -> Array:
                return add(resized.terms[term].keep_rows(values)) / resized.replicas(term)

            if shares.padded is not None:
                padded = replace(shares.padded, rows=sample.sharding(shares.padded.rows))
                run = padded.corrected(run, run_row)
            of, others = differentiated(run, share, here, mine, *codes)
            found = {}
            for term, ((value, size), gradient) in of.items():
                value, gradient = add_shares(value, gradient, of_latents, shares.axes)
                gradient = {name: all_rows(leaf, of_latents[name]) for name, leaf in gradient.items()}
                found[term] = (value, lax.psum(size, shares.axes) if shares.axes else size), gradient
            everywhere = {**shares.others, **check.shardings}
            return found, {n: all_rows(v, sample.sharding(everywhere[n])) for n, v in others.items()}

        def compiled(run: Callable[..., Any], *here_and_row: Callable[..., Any]) -> tuple[Any, Any]:
            ways = partial(in_whole, run), dict.fromkeys(sizes, 1)
            return jax.jit(on_virtual_mesh(*ways)), jax.jit(on_virtual_mesh(partial(on_device, *here_and_row), sizes))

        def forced(traced: TracedProgram) -> tuple[Branches, Callable[..., Any]]:
            """Return the unproved outputs of the program as a function of position, data and codes of branches."""
            wanted = [traced.outputs.index(output) for output in (*check.terms, *check.others)]
            depends = [True] * len(jax.tree.leaves(traced.position)) + [False] * len(traced.shapes)
            branches = Branches(traced.jaxpr, depends, wanted)

            def run(position: PyTree, arrays: PyTree, codes: PyTree) -> tuple[PyTree, PyTree]:
                found = branches(jax.tree.leaves((position, arrays)), codes)
                others = [jnp.asarray(value, jnp.result_type(float)) for value in found[len(check.terms) :]]
                return dict(zip(check.terms, found, strict=False)), dict(zip(check.others, others, strict=True))

            return branches, run

        likes = [
            [_shape_like(a, s, rows(new)) for a, s, new in
             zip(arguments.arrays, arguments.shardings, shardings, strict=True)]
            for rows in (lambda s: s.rows, lambda s: s.local_rows)
        ]  # fmt: skip
        traced = TracedProgram(program, arguments.layout, likes[0], dict.fromkeys(sizes, 1))
        widest, narrowest = extent(traced.jaxpr)
        if widest > WIDEST:
            raise TooLarge(f"on {sample.count:,} rows the model makes an array of {widest:,} numbers")
        eps = float(jnp.finfo(narrowest).eps)
        step, rounding = (2.0**-40, 1e-9) if narrowest == jnp.float64 else (4 * eps, 64 * eps)
        here = TracedProgram(program, arguments.layout, likes[1], sizes)
        row = here
        if shares.padded is not None:
            row = TracedProgram(program, arguments.layout, shares.padded.shapes_of_one_row(likes[1]), sizes)
        (branches, forced_whole), *forced_here = forced(traced), forced(here), forced(row)
        ways = _Forced(branches, *compiled(forced_whole, *(run for _, run in forced_here)))
        return cls(check, *compiled(run, run, run), traced.position, step, rounding, sample.count, ways)

    def position(self, number: int, radius: float) -> Position:
        """Return a random position."""
        random = np.random.default_rng(number)
        return {
            n: random.uniform(-radius, radius, size=s.shape).astype(s.dtype) for n, s in sorted(self.shapes.items())
        }

    def compare(self, position: Position, arrays: Sequence[np.ndarray]) -> set[str]:
        """Return the variables that could be compared; raise if one differs."""
        return self._compare(self.whole, self.devices, position, arrays)

    def compare_branches(self, position: Position, arrays: Sequence[np.ndarray]) -> str:
        """Compare with forced branches; only with some codes if the data are large.

        Returns:
            The reason if the branches could not be followed, else an empty text.

        Raises:
            Differs: when shares and whole differ.
        """
        most = max(FEWEST_PLANS, FORCED_NUMBERS // max(sum(np.size(array) for array in arrays), 1))
        try:
            jax.eval_shape(self.forced.whole, position, arrays, np.zeros(MOST_SITES, np.int32))  # finds the branches
            for codes in self.forced.branches.plans()[:most]:
                whole, devices = (partial(_with_codes, way, codes) for way in self.forced[1:])
                self._compare(whole, devices, position, arrays, forced=True)
        except Differs:
            raise
        except Exception as error:  # a primitive that cannot be evaluated alone
            reason = (str(error).splitlines() or [repr(error)])[0][:200]
            return f"its branches (of jnp.where, lax.cond) could not be followed: {reason}"
        return ""

    def compare_each(self, positions: Sequence[Position], arrays: Sequence[Any]) -> set[str]:
        """Return the variables that could be compared at one of the positions or more; raise if one differs."""
        seen: set[str] = set()
        for start in range(0, len(positions), TOGETHER):
            some = positions[start : start + TOGETHER]
            filled = [*some, *[some[-1]] * (min(TOGETHER, len(positions)) - len(some))]  # one shape, compiled once
            stacked = {name: np.stack([position[name] for position in filled]) for name in some[0]}
            found = self._evaluated(*self._each, stacked, arrays)
            for number in range(len(some)):
                seen |= self._judged(*jax.tree.map(lambda values, number=number: values[number], found))
        return seen

    @cached_property
    def _each(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Both evaluations at each of several positions."""

        def at_each(way: Callable[..., Any]) -> Callable[..., Any]:
            return jax.jit(lambda positions, arrays: lax.map(lambda position: way(position, arrays), positions))

        return at_each(self.whole), at_each(self.devices)

    def _compare(
        self, whole: Callable[..., Any], devices: Callable[..., Any], position: Position, arrays: Sequence[np.ndarray],
        forced: bool = False,
    ) -> set[str]:  # fmt: skip
        return self._judged(*self._evaluated(whole, devices, position, arrays), forced)

    def _evaluated(
        self, whole: Callable[..., Any], devices: Callable[..., Any], position: Position, arrays: Sequence[Any]
    ) -> tuple[Any, Any, Any]:
        """Return the whole, the devices' shares, and the shares where the position has changed in its last digits."""
        signs = {n: np.where(np.arange(p.size).reshape(p.shape) % 2, 1, -1) for n, p in position.items()}
        nearby = {
            n: (p + self.step * np.maximum(np.abs(p), 1e-3) * signs[n]).astype(p.dtype) for n, p in position.items()
        }
        return jax.device_get((whole(position, arrays), devices(position, arrays), devices(nearby, arrays)))

    def _judged(self, whole: Any, devices: Any, nearby: Any, forced: bool = False) -> set[str]:
        """Return the variables that could be compared; raise if one differs."""
        (terms, others), (found, found_others), (near, near_others) = whole, devices, nearby
        seen, unseen = set(), set()
        for term, ((value, size), gradient) in terms.items():
            (summed, _), summed_gradient = found[term]
            (moved, _), moved_gradient = near[term]
            is_number = np.isfinite(value), np.isfinite(summed)
            if not any(is_number) or (forced and not all(is_number)):  # a forced branch may leave its domain
                unseen.add(term[0])
                continue
            noise = 4 * abs(moved - summed) + self.rounding * (size + abs(value))
            if not abs(value - summed) <= max(noise, np.finfo(np.float64).tiny):
                raise Differs(self._say(term[0], "its log density", "the sum of those", value, summed, forced))
            seen.add(term[0])
            for name, leaf in gradient.items():
                if not forced or _finite(summed_gradient[name], moved_gradient[name]):
                    self._compare_gradient(term[0], name, leaf, summed_gradient[name], moved_gradient[name], forced)
        for name, values in others.items():
            if forced and not _finite(values, found_others[name]):
                continue
            if _differ(values, found_others[name], near_others[name], self.rounding):
                raise Differs(
                    f"The deterministic value {name!r} differs between one device and the whole data"
                    f"{_IN_BRANCH if forced else ''}: it depends on the number of rows, or mixes rows. Compute it "
                    f"from the draws, or from data outside of the model."
                )
            seen.add(name)
        return seen - unseen

    def _compare_gradient(
        self, name: str, latent: str, whole: np.ndarray, summed: np.ndarray, moved: np.ndarray, forced: bool = False
    ) -> None:
        if not np.all(np.isfinite(whole)) or not whole.size:
            return
        loose = self.rounding if self.rounding < 1e-8 else 1e-3
        if _differ(whole, summed, moved, loose):
            worst = np.unravel_index(np.argmax(np.abs(np.nan_to_num(whole - summed, nan=np.inf))), np.shape(whole))
            what = f"the gradient of its log density, with respect to {latent!r},"
            raise Differs(self._say(name, what, "the sum of those", whole[worst], summed[worst], forced))

    def _say(self, name: str, what: str, of: str, whole: float, summed: float, forced: bool) -> str:
        shares, where = self.unproved.shares, _IN_BRANCH if forced else ""
        axes = shares.axes[0] if len(shares.axes) == 1 else shares.axes
        digits = next((d for d in (4, 6, 9) if f"{whole:.{d}g}" != f"{summed:.{d}g}"), 12)
        return (
            f"Variable {name!r}: {what} on the whole data is not {of} on the rows of each "
            f"device along {named_axes(shares.axes)}; on {self.rows} of your rows it is {whole:.{digits}g} instead of "
            f"{summed:.{digits}g}{where}. The model mixes rows, for instance by a mean, a normalisation or a "
            f"difference to the row before. Do so outside of the model; or over all devices, as in "
            f"jax.lax.pmean(x.mean(0), {axes!r}); or do not shard these data."
        )


_IN_BRANCH = ", in a branch (of jnp.where, lax.cond, a maximum) that other values of the variables select"


def _with_codes(way: Callable[..., Any], codes: np.ndarray, *given: PyTree) -> PyTree:
    return way(*given, codes)


def _finite(*arrays: ArrayLike) -> bool:
    return all(np.isfinite(array).all() for array in arrays)


def _differ(whole: np.ndarray, summed: np.ndarray, moved: np.ndarray, rounding: float) -> bool:
    whole, summed, moved = (np.asarray(x, np.float64) for x in (whole, summed, moved))
    if whole.shape != summed.shape:
        return True
    finite = np.isfinite(whole)
    if (finite != np.isfinite(summed)).any():
        return True
    scale = np.max(np.abs(whole[finite]), initial=0.0)
    noise = 4 * np.abs(np.where(finite, moved - summed, 0)) + rounding * scale + np.finfo(np.float64).tiny
    return bool(np.any(np.abs(np.where(finite, whole - summed, 0)) > np.nan_to_num(noise)))


def _values(run: Evaluation, names: Sequence[str]) -> dict[str, Array]:
    return {name: jnp.asarray(run.variables[name].value, jnp.result_type(float)) for name in names}


def _resized(sample: RowSample, sharding: RowSharding) -> RowSharding:
    """Return the sharding of a term in the sample."""
    if not sharding.rows:
        return sharding
    found = [new for old, new in sample.rows.items() if (old.axes, old.rows) == (sharding.axes, sharding.rows)]
    return found[0] if found else sharding


def _shape_like(array: Array, sharding: RowSharding, rows: int) -> jax.ShapeDtypeStruct:
    shape = (rows, *array.shape[1:]) if sharding.axes else array.shape
    return jax.ShapeDtypeStruct(shape, _dtype(array.dtype))


def _dtype(dtype: DTypeLike) -> DTypeLike:
    return jnp.result_type(float) if jnp.issubdtype(dtype, jnp.floating) else dtype
