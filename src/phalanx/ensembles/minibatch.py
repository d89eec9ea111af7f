r"""Which terms of a log density are those of the rows of a batch, and which are the same whatever the batch.

A sum over $B$ of $N$ rows stands for all when it counts $N/B$ times; a prior counts once. Which is which is seen by
cutting the example in two: what adds up over the parts is a sum over rows, also where it sees only how many there are,
as $-n \log\sigma$ does; what is the same for each part and follows from no row is a prior. Anything else has no
unbiased estimate from a batch, a mean of the rows in a scale say, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from phalanx.ensembles.checks import count_rows
from phalanx.mesh.dependence import varying_axes
from phalanx.programs.tracing import Program
from phalanx.programs.unconstrained import run_unconstrained

EXAMPLE = "sgld, sghmc: the example"

Term = tuple[str, str]

POINTS = 4
"""Positions at which terms are compared."""

CLOSE = 1e-4
"""Sums in float32 are as close as this, relative to what was added up."""


def terms_of_rows(model: Program, example: Mapping[str, Any]) -> set[Term]:
    """The terms of the log density that are sums over the rows of a batch.

    Raises:
        ValueError: when a variable lives with the rows, or a term is neither a sum over rows nor the same for any.
    """
    example = {name: jax.tree.map(jnp.asarray, leaf) for name, leaf in example.items()}
    rows = count_rows(EXAMPLE, example)
    if rows == 1:
        example, rows = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), example), 2
    like = run_unconstrained(model, None, example)
    follow = _terms_that_follow(model, example, like.position)
    cut = max(1, rows // 3)  # uneven parts: what is right for halves alone does not pass
    parts = [jax.tree.map(lambda leaf, s=s: leaf[s], example) for s in (slice(None), slice(0, cut), slice(cut, None))]
    _check_variables(like.position, run_unconstrained(model, None, parts[1]).position, follow)
    sums, sizes = zip(*(_sums(model, part, like.position) for part in parts), strict=True)
    return {term for term in sums[0] if _adds_up(term, [s[term] for s in sums], sizes[0][term], term in follow)}


def _adds_up(term: Term, sums: list[Array], size: Array, follows: bool) -> bool:
    """Whether a term is a sum over rows, from its values on all rows and on two parts of them."""
    whole, first, rest = (np.asarray(value, np.float64) for value in sums)
    margin = CLOSE * np.asarray(size, np.float64) + 1e-6
    with np.errstate(invalid="ignore"):
        added = _alike(whole, first + rest, margin)
        same = _alike(whole, first, margin) and _alike(whole, rest, margin)
    if same and not follows:
        return False
    if added:
        return True
    why = "follows from the rows of the data" if follows else "depends on how many rows there are"
    raise ValueError(
        f"sgld, sghmc: the log density of {term[0]!r} {why} and is no sum over them, so that a batch does not tell "
        f"what it is of all the data. Make it a sum of one term for each row; or work out what it takes from the data "
        f"(a mean, a scale, the number of rows) once, from all of them, and write it into the model as a constant."
    )


def _alike(a: np.ndarray, b: np.ndarray, margin: np.ndarray) -> bool:
    both = np.isfinite(a) & np.isfinite(b)
    return bool((np.abs(a - b) <= margin)[both].all() and (both | (a == b) | (np.isnan(a) & np.isnan(b))).all())


def _sums(model: Program, batch: Any, like: Mapping[str, Array]) -> tuple[dict[Term, Array], dict[Term, Array]]:
    """Each term added up over a batch at a few positions, and the sizes of what was added up."""

    def at(key: Array) -> tuple[dict[Term, Array], dict[Term, Array]]:
        keys = dict(zip(like, random.split(key, max(len(like), 1)), strict=False))
        position = {name: random.normal(keys[name], value.shape, value.dtype) for name, value in like.items()}
        terms = run_unconstrained(model, position, batch).terms()
        return {k: jnp.sum(v) for k, v in terms.items()}, {k: jnp.sum(jnp.abs(v)) for k, v in terms.items()}

    return jax.jit(jax.vmap(at))(random.split(random.key(0), POINTS))


def _terms_that_follow(model: Program, example: Any, position: Any) -> set[Term]:
    """The terms that are computed from the rows, read off the program."""

    def terms(position: Any, batch: Any) -> Any:
        return run_unconstrained(model, position, batch).terms()

    program, shapes = jax.make_jaxpr(terms, return_shape=True)(position, example)
    rows = frozenset({"rows"})
    inputs = [*[frozenset()] * len(jax.tree.leaves(position)), *[rows] * len(jax.tree.leaves(example))]
    found = zip(sorted(shapes), varying_axes(program, inputs), strict=True)
    return {term for term, axes in found if axes}


def _check_variables(position: Mapping[str, Array], of_fewer: Mapping[str, Array], follow: set[Term]) -> None:
    for name, value in position.items():
        if (name, "density") in follow or name not in of_fewer or value.shape != of_fewer[name].shape:
            raise ValueError(
                f"sgld, sghmc: variable {name!r} lives with the rows of the data, and every batch has others. Only "
                f"variables that all rows share can be drawn from batches; use phx.mcmc."
            )
