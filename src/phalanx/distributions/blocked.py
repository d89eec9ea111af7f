r"""Likelihoods of many rows, evaluated block by block: value and gradient in one pass over the data.

To differentiate $\ell = \sum_i \log p(y_i \mid x_i, \theta)$, JAX computes the values of all rows, keeps intermediate
results of all rows, and passes over all rows again. Here each block of rows gives its value and its gradient while it
is in the cache; both are added up, and the block's intermediate results are dropped. Data keep the type they are stored
in; the function that reads them widens them block by block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, Unit
from numpyro.distributions.constraints import Constraint

from phalanx.distributions.precise import precise
from phalanx.distributions.row_sums import total_of
from phalanx.distributions.supports import support_of, within_support, zero_outside
from phalanx.jaxprs.walking import aval_of, equations_within
from phalanx.mesh.compatibility.numpyro_internals import unvalidated
from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.mesh.row_sharding import only_rows
from phalanx.mesh.specs import PyTree
from phalanx.mesh.total import Total
from phalanx.placements.row_functions import rows_on_device, sum_rows

if TYPE_CHECKING:
    from jaxtyping import Shaped

Rows = Any
"""A pytree of arrays whose leading dimension is that of the rows."""

T = TypeVar("T")

BLOCK_ELEMENTS = 2**19
"""Elements of the widest array of a block: 2 MiB in float32, which a core's cache holds."""

BLOCK_ELEMENTS_ACCELERATOR = 2**25
"""The same on accelerators, whose many threads need long arrays: 128 MiB."""

LEAST_ROWS = 16
"""Smallest number of rows in a block."""

OfBlock = Callable[..., Total]
"""`f(mask of real rows, arrays of the rows, *arrays it closes over)`, the sum of the rows' log densities."""


class Blocked(Distribution):
    """Distribution of many independent rows, whose log density is added up block by block; see `blocked`.

    Attributes:
        fn: from rows to their distribution, or to their log densities.
        rows: arguments of `fn`.
        block: number of rows in a block; None chooses it.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]
    pytree_aux_fields = ("fn", "block")
    pytree_data_fields = ("rows",)

    def __init__(self, fn: Callable[..., Any], rows: tuple[Rows, ...], block: int | None = None):
        self.fn = fn
        self.rows = rows
        self.block = block
        count = _count_rows(rows)
        shapes: list[tuple[int, ...]] = []

        def note_shapes(*rows: Rows) -> None:
            distribution = self._of(rows)
            shapes.extend((tuple(distribution.batch_shape), tuple(distribution.event_shape)))

        jax.eval_shape(note_shapes, *rows)
        batch_shape, event_shape = shapes
        if batch_shape[:1] != (count,):
            raise ValueError(
                f"phx.blocked: the function was given {count} rows and returned a distribution of batch shape "
                f"{batch_shape}; the first dimension must be that of the rows. Write it for any number of rows, with "
                f"one entry for each."
            )
        super().__init__(batch_shape, event_shape, validate_args=False)

    @property
    def count(self) -> int:
        """Number of rows, from the rows themselves: only they survive a JAX transformation."""
        return len(jax.tree.leaves(self.rows)[0])

    @property
    def is_term(self) -> bool:
        """True if `fn` returns log densities: a term of the density, and no variable."""
        return self.event_shape == (0,)  # that of NumPyro's Unit; known without evaluating rows

    @cached_property
    def whole(self) -> Distribution:
        """Distribution of all rows at once."""
        return self._of(self.rows)

    @property
    def support(self) -> Constraint | None:
        """Support of the rows' values."""
        return support_of(self.whole)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw all rows."""
        return jnp.asarray(self.whole.sample(key, sample_shape))

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Array:
        """Return the log densities, row by row."""
        return jnp.asarray(precise(within_support(self.whole)).log_prob(value))

    def total(self, value: Array, lanes: int = 1, scale: Any = 1.0) -> Total:
        """Return the sum of the rows' log densities.

        Args:
            value: values of all rows.
            lanes: chains that the device advances together, which share the cache.
            scale: factor on each log density.
        """
        if jnp.shape(value)[:1] != (self.count,):  # with sample dimensions in front, as only a user's own call has
            return total_of(scale * self.log_prob(value))
        leaves, tree = jax.tree.flatten((jnp.asarray(value), self.rows))

        def of_block(real: Array | None, leaves: list[Array]) -> Total:
            value, rows = jax.tree.unflatten(tree, leaves)
            distribution = self._of(rows)
            log_prob = within_support(distribution).log_prob(value)
            log_prob = zero_outside(distribution, value, jnp.asarray(log_prob))
            log_prob = log_prob if isinstance(scale, float) and scale == 1.0 else scale * log_prob
            return total_of(log_prob if real is None else only_rows(real, log_prob))

        return sum_over_rows(of_block, self.block, leaves, lanes)

    def _of(self, rows: tuple[Rows, ...]) -> Distribution:
        with unvalidated():  # NumPyro cannot check traced values
            distribution = self.fn(*rows)
        return precise(distribution) if isinstance(distribution, Distribution) else Unit(distribution)


def blocked(fn: Callable[..., Any], *rows: Rows, block: int | None = None) -> Blocked:
    r"""Return the distribution of many independent rows, evaluated block by block, so that memory stays small.

    $\sum_i \log p(y_i \mid x_i, \theta)$ and its gradient are added up over blocks of rows in one pass, without an
    array as long as the data. The model needs no other change, on one device or many.

    Args:
        fn: from a block of `rows` to the distribution of their values, whose first dimension is that of the rows, or
            to an array of log densities (for `phx.factor`). It may use any other variables of the program. Data may
            have a narrow type (`uint8` pixels, `bfloat16`), which `fn` widens.
        *rows: arguments of `fn`, cut into blocks: arrays, or trees of arrays, with one leading row for each value; data
            or latent variables.
        block: number of rows in a block; None fits a block into a core's cache. (Under `.mask`, `.to_event` or a scale
            for every row the distribution is evaluated in one piece.)

    Returns:
        A distribution, for `phx.sample(name, ..., obs=...)`; or for `phx.factor(name, ...)`.

    Raises:
        ValueError: when `rows` differ in length or are empty, or `fn` has not one entry for each. (A function that
            mixes rows, by their mean for instance, is not detected: compute such values of all rows outside of `fn`.)

    Example:
        >>> import jax.numpy as jnp, numpy as np, numpyro.distributions as dist, phalanx as phx
        >>> def model(pixels, label):
        ...     w = phx.sample("w", dist.Normal(0.0, 1.0).expand([4]))
        ...     rows = lambda pixels: dist.Bernoulli(logits=pixels.astype(jnp.float32) / 255 @ w)
        ...     phx.sample("label", phx.blocked(rows, pixels), obs=label)
        >>> pixels = np.arange(400, dtype=np.uint8).reshape(100, 4)
        >>> data = {"pixels": pixels, "label": np.arange(100) % 2}
        >>> posterior = phx.mcmc(model, data, num_warmup=100, num_samples=100, progress=False)
        >>> posterior.draws["w"].shape
        (4, 100, 4)
    """
    if block is not None and (not isinstance(block, int) or isinstance(block, bool) or block < 1):
        raise ValueError(f"phx.blocked: block must be a whole number of at least 1; got {block!r}. None chooses one.")
    if not callable(fn) or isinstance(fn, Distribution):
        raise TypeError(f"phx.blocked: the first argument must be a function of rows, got {type(fn).__name__}.")
    return Blocked(fn, rows, block)


def _count_rows(rows: tuple[Rows, ...]) -> int:
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(rows)]
    counts = {shape[0] if shape else None for shape in shapes}
    if len(counts) != 1 or None in counts or 0 in counts:
        raise ValueError(
            f"phx.blocked: the rows must be arrays of one length, at least 1; got shapes "
            f"{', '.join(map(str, shapes)) or 'none'}."
        )
    return counts.pop()  # pyright: ignore[reportReturnType]  # None has just been refused


def rows_of_block(f: OfBlock, leaves: list[Shaped[Array, "rows ..."]], lanes: int) -> int:
    """Return the number of rows for which the arrays of all lanes fit into a core's cache; a divisor if possible."""
    count = len(leaves[0])
    converted, closed_over = jax.closure_convert(f, None, leaves)
    shared_size, of_rows = _widest(jax.make_jaxpr(converted)(None, leaves, *closed_over), len(closed_over))
    elements = BLOCK_ELEMENTS if jax.default_backend() == "cpu" else BLOCK_ELEMENTS_ACCELERATOR
    most = max(LEAST_ROWS, elements * count // max(shared_size, lanes * of_rows, 1))
    on_device = rows_on_device(count) or count
    return next((block for block in range(most, most // 2, -1) if on_device % block == 0), most)


def sum_over_rows(f: OfBlock, block: int | None, leaves: list[Shaped[Array, "rows ..."]], lanes: int) -> Total:
    """Return the sum of `f(real, rows)` over blocks of `block` rows. `f` may close over differentiated arrays."""
    count = len(leaves[0])
    on_device = rows_on_device(count)
    block = min(block or rows_of_block(f, leaves, lanes), on_device or count)
    blocks = _Blocks(block, is_masked=on_device is not None or count % block != 0)
    some_rows = jax.eval_shape(lambda: [leaf[:block] for leaf in leaves])
    converted, closed_over = jax.closure_convert(f, blocks.example_mask(), some_rows)
    return _sum(converted, blocks, leaves, closed_over)


class _Blocks(NamedTuple):
    """Blocks of rows: their size, and whether some of their rows are masked."""

    size: int
    is_masked: bool

    def example_mask(self) -> jax.ShapeDtypeStruct | None:
        """Return the shape of a block's mask."""
        return jax.ShapeDtypeStruct((self.size,), bool) if self.is_masked else None

    def fold(self, add: Callable[..., Any], carry: PyTree, real: Array | None, leaves: list[Array]) -> PyTree:
        """Return `carry` after `add(carry, start of the block, mask of its real rows, its rows)` for all blocks."""
        size = self.size
        count = len(leaves[0])
        if self.is_masked and real is None:
            real = jnp.ones(count, bool)
        if count == size:
            return add(carry, jnp.int32(0), real, leaves)

        def body(number: Array, carry: PyTree) -> PyTree:
            start = jnp.minimum(number * size, count - size)
            real_here, rows = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, size), (real, leaves))
            if count % size:  # the last block overlaps the one before, whose rows count once
                real_here = real_here & (start + jnp.arange(size) >= number * size)
            return add(carry, start, real_here, rows)

        return lax.fori_loop(0, -(-count // size), body, carry)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sum(f: OfBlock, blocks: _Blocks, leaves: list[Array], closed_over: list[Array]) -> Total:
    def total(real: Array | None, leaves: list[Array], closed_over: list[Array]) -> tuple[Total, None]:
        def add(total: Total, start: Array, real: Array | None, rows: list[Array]) -> Total:
            return (total + f(real, rows, *closed_over)).settled()

        return blocks.fold(add, _zero_total(), real, leaves), None

    return sum_rows(total, leaves, closed_over)[0]


def _forward(f: OfBlock, blocks: _Blocks, leaves: PyTree, closed_over: PyTree) -> tuple[Total, PyTree]:
    """Return the value, and the gradient as residuals: that of a sum does not depend on the cotangent."""
    rows_vary, rest_varies = ([p.perturbed for p in primals] for primals in (leaves, closed_over))
    leaves, closed_over = jax.tree.map(lambda p: p.value, (leaves, closed_over), is_leaf=_is_primal)

    def value_and_grad(real: Array | None, rows: list[Array], closed_over: list[Array]) -> PyTree:
        def value(varying_rows: list[Array], varying_rest: list[Array]) -> tuple[Array, Array]:
            total = f(real, _put(rows, varying_rows, rows_vary), *_put(closed_over, varying_rest, rest_varies))
            return total.fine, total.coarse

        differentiated = _take(rows, rows_vary), _take(closed_over, rest_varies)
        (fine, coarse), gradients = jax.value_and_grad(value, (0, 1), has_aux=True)(*differentiated)
        return Total(coarse, fine), *gradients

    some_rows = jax.eval_shape(lambda: [leaf[: blocks.size] for leaf in leaves])
    of_rest = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in closed_over]
    example = blocks.example_mask(), some_rows, of_rest
    of_block, transpose = _without_last_transposes(value_and_grad, *example)
    shapes_for_rest = jax.eval_shape(of_block, *example)[2]

    def sums(real: Array | None, leaves: list[Array], closed_over: list[Array]) -> PyTree:
        def add(carry: PyTree, start: Array, real: Array | None, rows: list[Array]) -> PyTree:
            total, for_rows, for_rest = carry
            value, for_these_rows, for_rest_here = of_block(real, rows, closed_over)
            for_rows = [_add_at(start, whole, part) for whole, part in zip(for_rows, for_these_rows, strict=True)]
            return (total + value).settled(), for_rows, jax.tree.map(jnp.add, for_rest, for_rest_here)

        no_rows = [jnp.zeros(leaf.shape, _wide(leaf)) for leaf in _take(leaves, rows_vary)]
        no_rest = [jnp.zeros(leaf.shape, _wide(leaf)) for leaf in shapes_for_rest]
        total, for_rows, for_rest = blocks.fold(add, (_zero_total(), no_rows, no_rest), real, leaves)
        return (total, for_rest), for_rows

    (total, for_rest), for_rows = sum_rows(sums, leaves, closed_over)
    for_rows = [g.astype(leaf.dtype) for g, leaf in zip(for_rows, _take(leaves, rows_vary), strict=True)]
    rest = _take(closed_over, rest_varies)
    for_rest = [g.astype(leaf.dtype) for g, leaf in zip(transpose(for_rest), rest, strict=True)]
    gradients = _put([None] * len(leaves), for_rows, rows_vary), _put([None] * len(closed_over), for_rest, rest_varies)
    return total, gradients


def _backward(f: OfBlock, blocks: _Blocks, gradients: PyTree, cotangent: Total) -> PyTree:
    factor = 0.0 if isinstance(cotangent.fine, SymbolicZero) else cotangent.fine
    return tuple(jax.tree.map(lambda gradient: factor * gradient, gradients))


_sum.defvjp(_forward, _backward, symbolic_zeros=True)


def _zero_total() -> Total:
    zero = jnp.zeros((), jnp.result_type(float))
    return Total(zero, zero)


def _without_last_transposes(
    f: Callable[..., Any], *example: PyTree
) -> tuple[Callable[..., Any], Callable[[list[Array]], list[Array]]]:
    """Return `f` without the transposes that end its last result, a list; and a function that applies them.

    The gradient of a matrix is a transposed product. On a CPU, XLA folds the transpose into the product, which makes
    the product slower (benchmarks/mnist_leapfrog.py measures it); so untransposed products are added up and their sum
    is transposed once.
    """
    if not Workaround.PRODUCTS_AS_THEY_ARE.is_on:
        return f, lambda results: results
    program, shapes = jax.make_jaxpr(f, return_shape=True)(*example)
    structure = jax.tree.structure(shapes)
    jaxpr = program.jaxpr
    count = len(shapes[-1])
    first = jaxpr.outvars[: len(jaxpr.outvars) - count]
    last = jaxpr.outvars[len(jaxpr.outvars) - count :]
    transposes = {eqn.outvars[0]: eqn for eqn in jaxpr.eqns if eqn.primitive.name == "transpose"}
    made_by = [None if isinstance(var, Literal) else transposes.get(var) for var in last]
    untransposed = [var if eqn is None else eqn.invars[0] for var, eqn in zip(last, made_by, strict=True)]
    run = jaxpr_as_fun(ClosedJaxpr(jaxpr.replace(outvars=[*first, *untransposed]), program.consts))

    def without(*args: PyTree) -> PyTree:
        return structure.unflatten(run(*jax.tree.leaves(args)))

    def transpose(results: list[Array]) -> list[Array]:
        pairs = zip(results, made_by, strict=True)
        return [x if eqn is None else x.transpose(eqn.params["permutation"]) for x, eqn in pairs]

    return without, transpose


def _widest(program: ClosedJaxpr, parameters: int) -> tuple[int, int]:
    """Return the sizes of a program's largest array, and of the largest that depends on its last inputs."""
    jaxpr = program.jaxpr
    largest = 0
    of_parameters = 0
    depend = set(jaxpr.invars[len(jaxpr.invars) - parameters :])
    for equation in jaxpr.eqns:
        size = _largest(equation)
        largest = max(largest, size)
        if depend.intersection(atom for atom in equation.invars if not isinstance(atom, Literal)):
            depend.update(equation.outvars)
            of_parameters = max(of_parameters, size)
    return largest, of_parameters


def _largest(equation: JaxprEqn) -> int:
    """Return the size of the largest array that an equation computes, also inside of the programs that it calls."""
    atoms = (atom for e in (equation, *equations_within(equation)) for atom in e.outvars)
    return max((math.prod(aval_of(atom).shape) for atom in atoms), default=0)


def _wide(leaf: Array | jax.ShapeDtypeStruct) -> jnp.dtype:
    """Return the type in which gradients are added up: half precision loses digits over many blocks."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


def _add_at(start: Array, whole: Array, part: Array) -> Array:
    before = lax.dynamic_slice_in_dim(whole, start, len(part))
    return lax.dynamic_update_slice_in_dim(whole, before + part, start, 0)


def _take(values: Sequence[T], selection: list[bool]) -> list[T]:
    return [value for value, want in zip(values, selection, strict=True) if want]


def _put(values: list[Any], new: list[Any], selection: list[bool]) -> list[Any]:
    """Return `values` with the wanted ones replaced by those of `new`, in order."""
    following = iter(new)
    return [next(following) if want else value for value, want in zip(values, selection, strict=True)]


def _is_primal(node: object) -> bool:
    return isinstance(node, CustomVJPPrimal)
