"""Discrete variables inside of loops of `numpyro.contrib.control_flow.scan`: one variable for all steps.

Given the discrete variables of all steps, the steps no longer wait for each other: a carry that is the state of the
step before is the vector of states, shifted by one. So all steps run at once under `jax.vmap`, and each variable of the
loop is one vector of the program, as if the program had no loop. What the carry holds besides, such as a count of the
steps, is computed before by `jax.lax.scan`.

A Markov chain that starts in state 0 and has the states z = [1, 1, 0] in three steps:

    carry before each step    [0, 1, 1]: the start, then z without its last entry
    transition matrix         its rows [0, 1, 1], gathered at once
    log density of z          its entries (0, 1), (1, 1), (1, 0), added up
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, get_opaque_trace_state, jaxpr_as_fun

from phalanx.jaxprs.dependence import NOWHERE, Axes, Dependence
from phalanx.language.messages import bypasses_numpyro
from phalanx.marginals.entries import Site, values_of
from phalanx.mesh.compatibility.numpyro_internals import Message, Messenger, ScanMessage
from phalanx.mesh.specs import PyTree

Give = Callable[[Site], Array | None]
"""Function from a discrete site of a loop, with steps first, to its values; None leaves the site as it is."""

DISCRETE: Axes = frozenset({"discrete"})


def loops_with(give: Give) -> AbstractContextManager[Any]:
    """Run loops with discrete latent variables as vectors of all steps, with the values that `give` returns."""
    return nullcontext() if bypasses_numpyro() else _Loops(give)


class _Loops(Messenger):
    """Handler of NumPyro's for `loops_with`; it handles the messages of its own thread."""

    def __init__(self, give: Give):
        super().__init__(None)
        self._give = give
        self._thread = threading.get_ident()

    def process_message(self, msg: Message) -> None:
        """Run the loop in a message, if it has discrete latent variables."""
        loop = ScanMessage.of(msg) if threading.get_ident() == self._thread else None
        if loop is None or not (sites := _discrete_in(loop)):
            return
        values: dict[str, Array] = {}
        for site in sites:
            if (value := self._give(site)) is None:
                raise ValueError(
                    f"phx.marginalize: variable {site.name!r} is latent and discrete inside of a loop, and names= "
                    f"leaves it out. Add {site.name!r} to names=."
                )
            values[site.name] = value
        msg["fn"] = lambda *_, **__: _at_once(loop, values)
        msg["stop"] = True


def _discrete_in(loop: ScanMessage) -> list[Site]:
    """Return the discrete latent variables of a loop; they are refused where they are not those of its steps."""
    sites: dict[str, Site] = {}
    others: list[str] = []

    def look(carry: PyTree, row: PyTree) -> None:
        outside = get_opaque_trace_state(convention="phalanx")

        def note(site: Message) -> Array | None:
            if site["type"] != "sample" or site["is_observed"] or site.get("_control_flow_done", False):
                return None
            name = site["name"]
            distribution = site["fn"]
            if not distribution.support.is_discrete:
                others.append(name)
                return jnp.zeros(distribution.shape()) if site["value"] is None else None
            if get_opaque_trace_state(convention="phalanx") != outside:
                raise ValueError(
                    f"phx.marginalize: the discrete variable {name!r} is sampled inside of a loop, branch or other "
                    f"function that JAX transforms, within a loop. One loop is supported, with the variable in the "
                    f"loop's own function."
                )
            if site["value"] is not None:
                raise ValueError(
                    f"phx.marginalize: the discrete variable {name!r} of a loop has a value that is not data. Give it "
                    f"with numpyro.handlers.condition, or leave it without a value."
                )
            values = values_of(name, distribution)
            sites[name] = Site(name, values, (loop.length, *distribution.shape()))
            return jnp.zeros(distribution.shape(), values.dtype)

        loop.run_step(0, carry, row, note)

    row = jax.tree.map(lambda x: jnp.asarray(x)[0], loop.rows)
    jax.eval_shape(look, jax.tree.map(jnp.asarray, loop.init), row)
    if sites and others:
        raise ValueError(
            f"phx.marginalize: variable {others[0]!r} is latent and continuous inside of a loop with the discrete "
            f"variable {next(iter(sites))!r}. Sample it before the loop, all steps at once, and pass it in as a row: "
            f"z = numpyro.sample({others[0]!r}, distribution.expand([{loop.length}])), scan(step, init, (z, data))."
        )
    return [*sites.values()]


def _at_once(loop: ScanMessage, values: Mapping[str, Array]) -> Any:
    """Return the outcome of a loop whose discrete variables have these values, step by step along the first axis."""

    def step(
        number: PyTree, carry: PyTree, row: PyTree, values_by_name: Mapping[str, Array]
    ) -> tuple[PyTree, PyTree, PyTree]:
        return loop.run_step(
            number, carry, row, lambda s: values_by_name.get(s["name"]) if s["type"] == "sample" else None
        )

    carries = _carries(loop, step, values)
    carry, sites, results = jax.vmap(step, axis_size=loop.length)(jnp.arange(loop.length), carries, loop.rows, values)
    last = 0 if loop.reverse else -1
    for name, value in values.items():
        sites.trace[name]["value"] = value  # the same array, by which tracers that replace it are found
    return loop.outcome(jax.tree.map(lambda x: x[last], carry), sites, results)


def _carries(loop: ScanMessage, step: Callable[..., Any], values: Mapping[str, Array]) -> Any:
    """Return the carry before each step, stacked."""
    init, tree = jax.tree.flatten(jax.tree.map(jnp.asarray, loop.init))
    numbers = jnp.arange(loop.length)

    def of_leaves(
        number: PyTree, leaves: Sequence[Array], row: PyTree, values_by_name: Mapping[str, Array]
    ) -> list[Array]:
        after, structure = jax.tree.flatten(step(number, tree.unflatten(leaves), row, values_by_name)[0])
        shapes = [jnp.shape(x) for x in leaves], [jnp.shape(x) for x in after]
        if structure != tree or shapes[0] != shapes[1]:
            raise ValueError(
                f"numpyro.contrib.control_flow.scan: the step returns a carry of other shapes than it gets: {tree} of "
                f"{shapes[0]} before, {structure} of {shapes[1]} after."
            )
        return after

    first_inputs = jax.tree.map(lambda x: x[0], (loop.rows, values))
    program = jax.make_jaxpr(of_leaves)(0, init, *first_inputs)
    depends = _dependence(program, len(init), len(jax.tree.leaves(first_inputs[1])))
    depth = _depths(loop, depends)
    call = jaxpr_as_fun(program)

    def shifted(leaf: Array, after: Array) -> Array:
        first = jnp.asarray(leaf, after.dtype)[None]
        return jnp.concatenate([after[1:], first] if loop.reverse else [first, after[:-1]])

    before = [jnp.broadcast_to(leaf, (loop.length, *leaf.shape)) for leaf in init]
    if serial := [n for n, d in enumerate(depth) if d == 0]:  # without discrete variables: step after step

        def turn(carry: list[Array], row: tuple[Array, list[Array]]) -> tuple[list[Array], list[Array]]:
            leaves = [*map(jnp.zeros_like, init)]
            for n, leaf in zip(serial, carry, strict=True):
                leaves[n] = leaf
            after = call(row[0], *leaves, *row[1], *map(jnp.zeros_like, jax.tree.leaves(first_inputs[1])))
            return [jnp.asarray(after[n], init[n].dtype) for n in serial], carry

        rows = numbers, jax.tree.leaves(loop.rows)
        _, carries = lax.scan(turn, [init[n] for n in serial], rows, reverse=loop.reverse)
        for n, leaf in zip(serial, carries, strict=True):
            before[n] = leaf
    for level in range(1, max(depth, default=0) + 1):
        after = jax.vmap(call)(numbers, *before, *jax.tree.leaves((loop.rows, values)))
        for n, leaf in enumerate(init):
            if depth[n] == level:
                before[n] = shifted(leaf, after[n])
    return tree.unflatten(before)


def _dependence(program: ClosedJaxpr, carried: int, discrete: int) -> list[Axes]:
    """Return for each leaf of the carry after a step the leaves before it that it depends on, and `DISCRETE`."""
    labels = [NOWHERE, *(frozenset({str(n)}) for n in range(carried))]
    labels += [NOWHERE] * (len(program.jaxpr.invars) - len(labels) - discrete) + [DISCRETE] * discrete
    return Dependence().run(program, labels)


def _depths(loop: ScanMessage, depends: Sequence[Axes]) -> list[int]:
    """Return for each leaf of the carry the number of steps back that it reaches; 0 if no discrete variable does.

    Raises:
        ValueError: when a leaf adds up all steps before it.
    """
    moving = {n for n, sources in enumerate(depends) if sources & DISCRETE}
    while more := {n for n, sources in enumerate(depends) if sources & {str(m) for m in moving}} - moving:
        moving |= more
    depth = [0] * len(depends)
    for level in range(1, len(depends) + 1):
        ready = [n for n in moving if not depth[n] and all(depth[m] for m in moving if str(m) in depends[n])]
        for n in ready:
            depth[n] = level
    if unbounded_leaves := sorted(n for n in moving if not depth[n]):
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(loop.init)]
        raise ValueError(
            f"phx.marginalize: the carry{paths[unbounded_leaves[0]]} of a loop depends on the discrete variables of "
            f"all steps before it, such as a count of visits does, and not on those of a few. Each step may depend on "
            f"the discrete variables of the step before it, or of a fixed number of steps. Carry the values "
            f"themselves; or make the count, within bounds, part of the discrete variable."
        )
    return depth
