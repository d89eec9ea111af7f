"""A kernel let loose on exact draws: many lanes, each at one, make a few draws more, which must be exact too."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from scipy.stats import norm

import phalanx as phx
from phalanx.inputs.arguments import split_arguments
from phalanx.kernels.protocol.adapter import KernelAdapter
from phalanx.kernels.protocol.kernel import Kernel, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.chains import lane_chains
from phalanx.mesh.random_numbers import Keys

FALSE_FAILURES = 1e-6
"""Probability that one comparison of all quantiles fails though the kernel leaves the target as it is."""

LEVELS = np.array([0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.997, 0.999])


class Drawer:
    """A kernel on a model, compiled once for a number of lanes.

    Args:
        model: a program without data.
        kernel: the kernel.
        lanes: how many.
        draws: how many each lane makes, in its own time.
    """

    def __init__(self, model: Any, kernel: Kernel, lanes: int, draws: int):
        self._target = phx.Target.of(model, split_arguments(model, {}), phx.make_mesh(devices=jax.devices()[:1]))
        self._machine, self._kernel = KernelAdapter(kernel.machine), kernel.on(self._target)
        self._lanes, self._draws = lanes, draws
        everywhere = PartitionSpec()
        on_mesh = jax.shard_map(
            self._run, mesh=self._target.mesh, in_specs=(everywhere,) * 4, out_specs=everywhere, check_vma=False
        )
        self._compiled = jax.jit(on_mesh)

    def after(
        self, positions: Mapping[str, np.ndarray], seed: int = 0, **tuning: Any
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Unconstrained positions `(lanes, ...)` of every lane after its draws, and statistics of the last.

        Args:
            positions: where the lanes begin, by variable.
            seed: of the keys.
            tuning: hyperparameters in place of the kernel's.
        """
        given = jax.tree.map(jnp.asarray, self._kernel.tuning._replace(**tuning))
        with jax.default_matmul_precision("float32"):
            found = self._compiled(self._target.place_arrays(), dict(positions), given, jnp.uint32(seed))
        return jax.tree.map(np.asarray, found)

    def _run(self, arrays: Any, positions: Any, given: Any, seed: Any) -> Any:
        count, draws = self._lanes, self._draws
        target, keys = (
            LaneTarget(self._target.on_device(arrays, count), count),
            Keys.of_chains(seed, lane_chains(count)),
        )
        total, gradient = jax.vmap(target.density.value_and_grad)(positions)
        at = Point(target.layout.vector(positions), total, target.layout.vector(gradient))
        now = self._machine.init(at, jnp.int32(1), keys, target)

        def tick(now: Any, made: Any, last: Any) -> Any:
            now, done, info = self._machine.step(now, made < draws, keys, target, given)
            done, found = done & (made < draws), (now.at.position.T, info)
            return now, made + done, jax.tree.map(partial(_chosen, done), found, last)

        def shapes() -> Any:
            target = LaneTarget(self._target.on_device(arrays, count), count)  # it remembers what it has computed
            later, _, info = self._machine.step(now, jnp.zeros(count, bool), keys, target, given)
            return later.at.position.T, info

        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(shapes))
        carry = now, jnp.zeros(count, jnp.int32), nothing
        _, _, last = lax.while_loop(lambda carry: (carry[1] < draws).any(), lambda carry: tick(*carry), carry)
        return last[0].by_variable(), last[1]._asdict()


def _chosen(done: Any, new: Any, old: Any) -> Any:
    return jnp.where(done.reshape(done.shape + (1,) * (new.ndim - 1)), new, old)


def worst_quantile(draws: np.ndarray, before: np.ndarray) -> float:
    """Return the largest deviation of the number of draws below an exact quantile, in standard errors.

    The quantiles are those of the exact draws the lanes began with, whose own error is as large at worst: the
    difference of the two counts has twice the variance of one.
    """
    below = (draws[:, None] <= np.quantile(before, LEVELS)).mean(0)
    return float(np.abs((below - LEVELS) / np.sqrt(2 * LEVELS * (1 - LEVELS) / len(draws))).max())


def limit(comparisons: int) -> float:
    """Standard errors that none of so many quantities, at every level, exceeds but once in a million suites."""
    return float(norm.isf(FALSE_FAILURES / (2 * comparisons * len(LEVELS))))
