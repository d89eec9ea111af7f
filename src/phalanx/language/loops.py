"""Latent variables inside of loops of `numpyro.contrib.control_flow.scan`: one variable for all steps.

A loop first asks for the values of each latent variable of its steps, with steps along the first dimension, and then
runs once with them. The run computes the distributions of all steps, given those before. So a variable is sent with a
distribution whose density is known later, after the loop, which is when densities are added up.

A random walk of three steps, `x = numpyro.sample("x", dist.Normal(x, 1.0))` from 0, at the values [1, 3, 2]:

    sent              "x", of shape (3,), on the real line
    the loop runs     with x = 1, 3, 2; the means of its steps are 0, 1, 3
    log density       that of Normal([0, 1, 3], 1) at [1, 3, 2]: -0.919 * 3 - (1 + 4 + 1) / 2 = -5.757
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import Tracer
from numpyro.distributions import Distribution

from phalanx.language.random_variable import RandomVariable
from phalanx.mesh.compatibility.numpyro_internals import Message, ScanMessage
from phalanx.mesh.specs import PyTree

Send = Callable[[RandomVariable], RandomVariable]
"""Function that sends a variable through all handlers."""


class StepVariable(NamedTuple):
    """A variable of a step without a value: its name, its support, and the shapes of its distribution.

    `first_values` are those of the first steps, if the program gives these alone.
    """

    name: str
    support: Any
    batch_shape: tuple[int, ...]
    event_shape: tuple[int, ...]
    first_values: Any = None


def step_variables(loop: ScanMessage) -> list[StepVariable]:
    """Return the variables of a loop's steps that have no value; empty if a handler replays the loop.

    Raises:
        ValueError: when the support of a variable depends on the step.
    """
    if any(kind not in ("condition", "substitute") for kind, _ in loop.actions):
        return []  # NumPyro runs the loop
    variables: dict[str, StepVariable] = {}

    def look(carry: PyTree, row: PyTree) -> None:
        def note(site: Message) -> Array | None:
            if site["type"] != "sample" or site["is_observed"] or site["value"] is not None:
                return None
            name = site["name"]
            distribution = site["fn"]
            support = distribution.support
            if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(support)):
                raise ValueError(
                    f"Variable {name!r} inside of numpyro.contrib.control_flow (scan): its support depends on the step "
                    f"or on other variables. Sample it on a fixed support, such as its distance from the bound."
                )
            of_handlers = (values[name] for _, values in loop.actions if isinstance(values, dict) and name in values)
            first_values = next(of_handlers, None)
            variables[name] = StepVariable(
                name, support, distribution.batch_shape, distribution.event_shape, first_values
            )
            return jnp.zeros(distribution.shape(), int if support.is_discrete else float)

        loop.run_step(0, carry, row, note)

    row = jax.tree.map(lambda x: jnp.asarray(x)[0], loop.rows)
    jax.eval_shape(look, jax.tree.map(jnp.asarray, loop.init), row)
    return [*variables.values()]


class LatentLoop:
    """A loop whose steps have latent variables.

    Attributes:
        loop: the loop.
        values: values of the variables that were sent, steps first.
        distributions: distributions of all steps, after the loop has run.
    """

    def __init__(self, loop: ScanMessage):
        self.loop = loop
        self.values: dict[str, Array] = {}
        self.distributions: dict[str, Distribution] = {}
        self._drawn: dict[str, Array] = {}
        self._names: tuple[str, ...] = ()
        self._first_values: dict[str, Array] = {}

    def begin(self, values: Mapping[str, Array]) -> None:
        """Have draws of the loop's variables begin with these values of their first steps."""
        self._first_values |= {name: values[name] for name in self._names if name in values}

    def run(self, variables: list[StepVariable], send: Send) -> PyTree:
        """Send the variables, run the loop with their values, and return the value of its message."""
        self._names = tuple(variable.name for variable in variables)
        self.begin({v.name: jnp.asarray(v.first_values) for v in variables if v.first_values is not None})
        for variable in variables:
            answer = send(RandomVariable(variable.name, AllSteps(self, variable)))
            self.values[variable.name] = answer.value
            if answer.key is not None and not answer.observed:
                self._drawn[variable.name] = answer.key
        carry, sites, results = self._steps(self.values, {})
        (length, key, carry), (sites, results) = self.loop.outcome(carry, sites, results)
        for variable in variables:  # they have been sent
            self.distributions[variable.name] = sites.trace.pop(variable.name)["fn"]
        return (length, key, carry), (sites, results)

    def draw(self, name: str, key: Array) -> Array:
        """Return a draw of a variable: all steps one after the other, after those with a first value.

        Variables of one loop are drawn together: each with the key of the first, in a run of all steps.
        """
        key = next(iter(self._drawn.values()), key)
        values = {name: value for name, value in self.values.items() if name not in self._drawn}
        counts = {name: len(first) for name, first in self._first_values.items() if name not in values}
        for variable, count in counts.items():
            first = self._first_values[variable]
            values[variable] = jnp.pad(first, [(0, self.loop.length - count), *[(0, 0)] * (first.ndim - 1)])
        _, sites, _ = self._steps(values, counts, key)
        return sites.trace[name]["value"]

    def _steps(
        self, values: Mapping[str, Array], counts: Mapping[str, int], key: Array | None = None
    ) -> tuple[PyTree, Any, PyTree]:
        """Return the last carry, and the sites and the results of all steps.

        With a key, variables without a value are drawn; those in `counts` have values of so many steps.
        """
        loop = self.loop

        def step(carry: PyTree, inputs: tuple[Array, PyTree, Mapping[str, Array]]) -> tuple[PyTree, PyTree]:
            number, row, of_step = inputs
            count = 0

            def give(site: Message) -> Array | None:
                nonlocal count
                if site["type"] != "sample" or site["is_observed"] or site["value"] is not None:
                    return None
                count += 1
                name = site["name"]
                if key is None or (name in of_step and name not in counts):
                    return of_step.get(name)
                draw = site["fn"].sample(jax.random.fold_in(jax.random.fold_in(key, number), count))
                return jnp.where(number < counts[name], of_step[name], draw) if name in counts else draw

            carry, sites, result = loop.run_step(number, carry, row, give)
            return carry, (sites, result)

        inputs = jnp.arange(loop.length), loop.rows, dict(values)
        init = jax.tree.map(jnp.asarray, loop.init)
        carry, (sites, results) = lax.scan(step, init, inputs, length=loop.length, reverse=loop.reverse)
        return carry, sites, results


class AllSteps(Distribution):
    """Distribution of a latent variable of a loop over all steps, the first dimension of its batch."""

    def __init__(self, loop: LatentLoop, variable: StepVariable):
        self.loop = loop
        self.variable = variable
        batch_shape = (loop.loop.length, *variable.batch_shape)
        super().__init__(batch_shape, variable.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        """Support of the variable of a step."""
        return self.variable.support

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw all steps, one after the other."""
        shape = (*sample_shape, *self.shape())
        keys = jax.random.split(key, math.prod(sample_shape)) if sample_shape else key[None]
        return jax.vmap(lambda one: self.loop.draw(self.variable.name, one))(keys).reshape(shape)

    def continues(self, values: Array | None) -> bool:
        """Return whether values are those of the first steps, after which others can be drawn."""
        shape = self.shape()
        if values is None or self.loop.loop.reverse or values.shape[1:] != shape[1:]:
            return False
        return values.ndim == len(shape) and len(values) < shape[0]

    def log_prob(self, value: Array) -> Array:
        """Return the log density of each step given those before, after the loop has run."""
        distribution = self.loop.distributions[self.variable.name]
        return jnp.asarray(distribution.log_prob(value))
