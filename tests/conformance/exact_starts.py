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
from phalanx.kernels.in_step import InStep
from phalanx.kernels.kernel import Kernel, Start
from phalanx.kernels.lanes import Lanes
from phalanx.mesh.chains import lane_chains
from phalanx.mesh.keys import Keys
from phalanx.programs.arguments import split_arguments

FALSE_FAILURES = 1e-6
"""Probability that one comparison of all quantiles fails though the kernel leaves the target as it is."""

LEVELS = np.array([0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.997, 0.999])


def draws_after(
    model: Any, kernel: Kernel, positions: Mapping[str, np.ndarray], draws: int, seed: int = 0, **tuning: Any
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Unconstrained positions `(lanes, ...)` of every lane after `draws` draws, each lane in its own time.

    Args:
        model: a program without data.
        kernel: the kernel.
        positions: where the lanes begin, by variable.
        draws: how many each makes.
        seed: of the keys.
        tuning: hyperparameters in place of the kernel's.

    Returns:
        Positions, and of the last draw what the kernel says of it.
    """
    target = phx.Target.of(model, split_arguments(model, {}), phx.make_mesh(devices=jax.devices()[:1]))
    machine, count = kernel.machine or InStep(kernel), len(next(iter(positions.values())))
    given = jax.tree.map(jnp.asarray, kernel.tuning._replace(**tuning))

    def run(arrays: Any, positions: Any, given: Any) -> Any:
        lanes, keys = (
            Lanes(target.on_device(arrays, count), count),
            Keys.of_chains(jnp.uint32(seed), lane_chains(count)),
        )
        begin = jax.vmap(lanes.density.value_and_grad)(positions)
        now = machine.start(lanes, Start(positions, *begin), keys, jnp.int32(1))

        def tick(now: Any, made: Any, last: Any) -> Any:
            now, ended = machine.tick(now, made < draws, jnp.zeros((), bool), lanes, given, keys)
            done, found = ended.done & (made < draws), (ended.position, ended.info)
            kept = found if last is None else jax.tree.map(partial(_chosen, done), found, last)
            return now, made + done, kept

        first = tick(now, jnp.zeros(count, jnp.int32), None)
        _, _, last = lax.while_loop(lambda carry: (carry[1] < draws).any(), lambda carry: tick(*carry), first)
        return lanes.unflatten(last[0]), last[1]._asdict()

    everywhere = PartitionSpec()
    on_mesh = jax.shard_map(run, mesh=target.mesh, in_specs=(everywhere,) * 3, out_specs=everywhere, check_vma=False)
    with jax.default_matmul_precision("float32"):
        found = jax.jit(on_mesh)(target.place_arrays(), dict(positions), given)
    return jax.tree.map(np.asarray, found)


def _chosen(done: Any, new: Any, old: Any) -> Any:
    return jnp.where(done.reshape(done.shape + (1,) * (new.ndim - 1)), new, old)


def worst_quantile(draws: np.ndarray, before: np.ndarray) -> float:
    """How far the number of draws below an exact quantile is from what it should be, in standard errors at most.

    The quantiles are those of the exact draws the lanes began with, whose own error is as large at worst: the
    difference of the two counts has twice the variance of one.
    """
    below = (draws[:, None] <= np.quantile(before, LEVELS)).mean(0)
    return float(np.abs((below - LEVELS) / np.sqrt(2 * LEVELS * (1 - LEVELS) / len(draws))).max())


def limit(comparisons: int) -> float:
    """Standard errors that none of so many quantities, at every level, exceeds but once in a million suites."""
    return float(norm.isf(FALSE_FAILURES / (2 * comparisons * len(LEVELS))))
