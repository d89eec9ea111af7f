"""The compiled blocks of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.adaptation.metric import MetricLearner
from phalanx.mesh.devices import CHAIN
from phalanx.run.blocks import Blocks, Order
from phalanx.run.compilation import use_cache
from phalanx.run.pace import Pace

Executable = Callable[..., Any]


@dataclass(frozen=True)
class Executables:
    """The compiled blocks. They hold no data, and serve every run of one model, kernel and set of shapes."""

    blocks: Blocks
    begin: Executable
    advance: Executable
    constrain: Executable
    count = 3
    pace: Pace = field(default_factory=Pace)

    @cached_property
    def restart(self) -> Executable:
        """`Blocks.restart`, compiled when a chain has strayed, and not before."""
        blocks, shared, chains = self.blocks, PartitionSpec(), PartitionSpec(CHAIN)
        in_specs = (shared, blocks.target.array_specs(), blocks.begun_specs().position, chains)
        restart = blocks.on_mesh(blocks.restart, in_specs, blocks.underway_specs())
        return jax.jit(restart, in_shardings=shardings(blocks.target.mesh, in_specs))


def compile_blocks(blocks: Blocks, arrays: Sequence[Array], matmul_precision: str) -> Executables:
    """Trace and compile the blocks of a run, ahead of time."""
    use_cache()
    mesh, shared, chains = blocks.target.mesh, PartitionSpec(), PartitionSpec(CHAIN)
    data, seed = blocks.target.array_specs(), np.uint32(0)
    # the compiler lets go of Python's lock: while it works on `advance`, by far the longest, the others are prepared
    with jax.default_matmul_precision(matmul_precision), ThreadPoolExecutor() as pool:
        begin = blocks.on_mesh(blocks.begin, (shared, data), blocks.begun_specs())
        begin = jax.jit(begin, in_shardings=shardings(mesh, (shared, data))).trace(seed, arrays)

        tuning, order = first_tuning(blocks), order_of(np.zeros(blocks.num_chains))
        order_specs = Order(shared, chains, shared, shared)
        in_specs = (shared, data, blocks.tuning_specs(tuning), order_specs, blocks.underway_specs())
        advance = blocks.on_mesh(blocks.advance, in_specs, blocks.advanced_specs())
        advance = jax.jit(advance, in_shardings=shardings(mesh, in_specs), donate_argnums=4)
        advance = advance.lower(seed, arrays, tuning, order, begin.out_info.underway)
        advance_compiled = pool.submit(advance.compile)

        # what runs only once is not worth optimising
        begin_compiled = pool.submit(begin.lower().compile, {"xla_backend_optimization_level": "0"})

        in_specs = (data, blocks.row_specs())
        constrain = blocks.on_mesh(blocks.constrain, in_specs, blocks.value_specs())
        constrain = jax.jit(constrain, in_shardings=shardings(mesh, in_specs))
        constrain = constrain.lower(arrays, advance.out_info.drawn.rows).compile()
        return Executables(blocks, begin_compiled.result(), advance_compiled.result(), constrain)


def order_of(draws: np.ndarray, ticks: int = 1, thin: int = 1, abandon: bool = False) -> Order:
    """An order in the types that blocks are compiled for."""
    return Order(
        np.int32(min(ticks, np.iinfo(np.int32).max)), draws.astype(np.int32), np.int32(thin), np.bool_(abandon)
    )


def first_tuning(blocks: Blocks) -> Any:
    """The kernel's tuning before anything is learned."""
    kernel = blocks.kernel
    if kernel.metric is None:
        return jax.tree.map(np.asarray, kernel.tuning)
    metric = MetricLearner(whole_sizes(blocks), kernel.metric, kernel.tuning.step_size.dtype).metric
    return kernel.tuning._replace(metric=metric)


def whole_sizes(blocks: Blocks) -> list[int]:
    """Coordinates of each group on all devices."""
    shape = blocks.target.mesh.shape
    devices = [math.prod(shape[axis] for axis in axes) for axes in blocks.groups]
    return [size * count for size, count in zip(blocks.row_layout.sizes, devices, strict=True)]


def shardings(mesh: Mesh, specs: Any) -> Any:
    """Specs as shardings over a mesh."""
    return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, PartitionSpec))
