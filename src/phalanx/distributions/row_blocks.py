"""Sums over blocks of rows, whose gradient is computed with their value: one pass over the rows for both."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from phalanx.jaxprs.walking import equations_within
from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Bool, Shaped

BLOCK_ELEMENTS = 2**19
"""Elements of the widest array of a block: 2 MiB in float32, which a core's cache holds."""

BLOCK_ELEMENTS_ACCELERATOR = 2**25
"""The same where there is no such cache, but many threads to be kept busy: 128 MiB."""

LEAST_ROWS = 16
"""Rows of a block at least."""

OfBlock = Callable[..., Total]
"""`f(which rows are real, their arrays, *what it closes over)`: the sum of their log densities."""


def rows_of_block(
    f: OfBlock, real: Bool[Array, "rows"] | None, leaves: list[Shaped[Array, "rows ..."]], lanes: int
) -> int:
    """As many rows as a cache holds, with what differs from lane to lane there for each lane; a divisor if possible."""
    count = len(leaves[0])
    converted, closed_over = jax.closure_convert(f, real, leaves)
    shared, own = _widest(jax.make_jaxpr(converted)(real, leaves, *closed_over), len(closed_over))
    elements = BLOCK_ELEMENTS if jax.default_backend() == "cpu" else BLOCK_ELEMENTS_ACCELERATOR
    most = max(LEAST_ROWS, elements * count // max(shared, lanes * own, 1))
    return next((block for block in range(most, most // 2, -1) if count % block == 0), most)


def sum_over_rows(
    f: OfBlock, block: int, real: Bool[Array, "rows"] | None, leaves: list[Shaped[Array, "rows ..."]]
) -> Total:
    """Sum of `f(which are real, rows)` over blocks of so many rows. `f` may close over what is differentiated."""
    some = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[:block], (real, leaves)))
    converted, closed_over = jax.closure_convert(f, *some)
    return _sum(converted, block, real, leaves, closed_over)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sum(f: OfBlock, block: int, real: Array | None, leaves: list[Array], closed_over: list[Array]) -> Total:
    def add(total: Total, start: Array, real: Array | None, rows: list[Array]) -> Total:
        return (total + f(real, rows, *closed_over)).settled()

    return _over_blocks(add, _nothing(), block, real, leaves)


def _forward(f: OfBlock, block: int, real: Any, leaves: Any, closed_over: Any) -> tuple[Total, Any]:
    """The gradient at once: that of a sum needs nothing that is not known yet."""
    of_rows, of_all = ([p.perturbed for p in primals] for primals in (leaves, closed_over))
    real, leaves, closed_over = jax.tree.map(lambda p: p.value, (real, leaves, closed_over), is_leaf=_is_primal)

    def value_and_grad(real: Array | None, rows: list[Array], closed_over: list[Array]) -> Any:
        def of(rows_in: list[Array], all_in: list[Array]) -> tuple[Array, Array]:
            total = f(real, _put(rows, rows_in, of_rows), *_put(closed_over, all_in, of_all))
            return total.fine, total.coarse

        differentiated = _take(rows, of_rows), _take(closed_over, of_all)
        (fine, coarse), gradients = jax.value_and_grad(of, (0, 1), has_aux=True)(*differentiated)
        return Total(coarse, fine), *gradients

    example = jax.tree.map(lambda leaf: leaf[:block], (real, leaves))
    of_block, transpose = _without_last_transposes(value_and_grad, *example, closed_over)
    found_of = jax.eval_shape(of_block, *example, closed_over)

    def add(carry: Any, start: Array, real: Array | None, rows: list[Array]) -> Any:
        total, of_the_rows, of_the_rest = carry
        value, of_these, of_all_rows = of_block(real, rows, closed_over)
        of_the_rows = [_add_at(start, whole, part) for whole, part in zip(of_the_rows, of_these, strict=True)]
        return (total + value).settled(), of_the_rows, jax.tree.map(jnp.add, of_the_rest, of_all_rows)

    nothing = [jnp.zeros(leaf.shape, _wide(leaf)) for leaf in found_of[2]]
    no_rows = [jnp.zeros(leaf.shape, _wide(leaf)) for leaf in _take(leaves, of_rows)]
    total, found_rows, found = _over_blocks(add, (_nothing(), no_rows, nothing), block, real, leaves)
    found_rows = [g.astype(leaf.dtype) for g, leaf in zip(found_rows, _take(leaves, of_rows), strict=True)]
    found = [g.astype(leaf.dtype) for g, leaf in zip(transpose(found), _take(closed_over, of_all), strict=True)]
    return total, (_put([None] * len(leaves), found_rows, of_rows), _put([None] * len(closed_over), found, of_all))


def _backward(f: OfBlock, block: int, gradients: Any, cotangent: Any) -> Any:
    factor = 0.0 if isinstance(cotangent.fine, SymbolicZero) else cotangent.fine
    return None, *jax.tree.map(lambda gradient: factor * gradient, gradients)


_sum.defvjp(_forward, _backward, symbolic_zeros=True)


def _nothing() -> Total:
    zero = jnp.zeros((), jnp.result_type(float))
    return Total(zero, zero)


def _over_blocks(add: Callable[..., Any], carry: Any, block: int, real: Array | None, leaves: list[Array]) -> Any:
    """`carry` after `add(carry, where a block starts, which are real, its rows)` for all blocks."""
    count = len(leaves[0])
    if block == count:
        return add(carry, jnp.int32(0), real, leaves)

    def body(number: Array, carry: Any) -> Any:
        start = jnp.minimum(number * block, count - block)
        real_here, rows = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, block), (real, leaves))
        if count % block:  # the last block has rows of the one before, which count once
            real_here = real_here & (start + jnp.arange(block) >= number * block)
        return add(carry, start, real_here, rows)

    return lax.fori_loop(0, -(-count // block), body, carry)


def _without_last_transposes(
    f: Callable[..., Any], *example: Any
) -> tuple[Callable[..., Any], Callable[[list[Array]], list[Array]]]:
    """`f` without the transposes that its last result, a list, ends in; and what applies them.

    The gradient of a matrix is a product, transposed. XLA folds the transpose into the product, which on a CPU makes it
    slower (by how much, benchmarks/mnist_leapfrog.py tells); products are added up as they are, and transposed once.
    """
    if not Workaround.PRODUCTS_AS_THEY_ARE.is_on:
        return f, lambda results: results
    program, shapes = jax.make_jaxpr(f, return_shape=True)(*example)
    structure, jaxpr, count = jax.tree.structure(shapes), program.jaxpr, len(shapes[-1])
    first, last = jaxpr.outvars[: len(jaxpr.outvars) - count], jaxpr.outvars[len(jaxpr.outvars) - count :]
    transposes = {eqn.outvars[0]: eqn for eqn in jaxpr.eqns if eqn.primitive.name == "transpose"}
    made_by = [None if isinstance(var, Literal) else transposes.get(var) for var in last]
    before_them = [var if eqn is None else eqn.invars[0] for var, eqn in zip(last, made_by, strict=True)]
    run = jaxpr_as_fun(ClosedJaxpr(jaxpr.replace(outvars=[*first, *before_them]), program.consts))

    def before(*given: Any) -> Any:
        return structure.unflatten(run(*jax.tree.leaves(given)))

    def transpose(results: list[Array]) -> list[Array]:
        pairs = zip(results, made_by, strict=True)
        return [x if eqn is None else x.transpose(eqn.params["permutation"]) for x, eqn in pairs]

    return before, transpose


def _widest(program: ClosedJaxpr, parameters: int) -> tuple[int, int]:
    """Elements of the largest array of a program, and of the largest that depends on its last `parameters` inputs."""
    jaxpr, largest, of_parameters = program.jaxpr, 0, 0
    depend = set(jaxpr.invars[len(jaxpr.invars) - parameters :])
    for equation in jaxpr.eqns:
        size = _largest(equation)
        largest = max(largest, size)
        if depend.intersection(atom for atom in equation.invars if not isinstance(atom, Literal)):
            depend.update(equation.outvars)
            of_parameters = max(of_parameters, size)
    return largest, of_parameters


def _largest(equation: Any) -> int:
    """Elements of the largest array that an equation makes, in the programs that it calls too."""
    made = (atom for e in (equation, *equations_within(equation)) for atom in e.outvars)
    return max((math.prod(atom.aval.shape) for atom in made), default=0)


def _wide(leaf: Any) -> Any:
    """The type that gradients are added up in: over many blocks, half precision would lose what blocks say."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


def _add_at(start: Array, whole: Array, part: Array) -> Array:
    before = lax.dynamic_slice_in_dim(whole, start, len(part))
    return lax.dynamic_update_slice_in_dim(whole, before + part, start, 0)


def _take(values: list[Any], wanted: list[bool]) -> list[Any]:
    return [value for value, want in zip(values, wanted, strict=True) if want]


def _put(values: list[Any], new: list[Any], wanted: list[bool]) -> list[Any]:
    """`values` with those that are wanted replaced, in their order."""
    following = iter(new)
    return [next(following) if want else value for value, want in zip(values, wanted, strict=True)]


def _is_primal(node: Any) -> bool:
    return isinstance(node, CustomVJPPrimal)
