"""Compiled programs that place, evaluate and move particles; data, temperature, tuning and keys are arguments."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.sharding import PartitionSpec
from jax.stages import Compiled, Lowered

from phalanx.adaptation.tuner import Sums
from phalanx.kernels.protocol.adapter import lane_specs
from phalanx.kernels.protocol.kernel import Point
from phalanx.mesh.chains import lane_chains, over_lanes
from phalanx.mesh.compatibility.jax_internals import RARELY, Options
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.position import ByVariable, Vector
from phalanx.mesh.processes import all_to_devices, to_devices, to_host
from phalanx.mesh.random_numbers import Keys, rolled_hashes
from phalanx.mesh.specs import PyTree
from phalanx.mesh.total import Total
from phalanx.run.compile.block_length import BlockLength
from phalanx.run.compile.device_constants import DeviceConstants
from phalanx.run.compile.stored_programs import read_or_compile
from phalanx.run.device.advance import Advance, BlockArguments, cut_lanes, join_lanes
from phalanx.run.device.blocks import Blocks, ChainState, shardings
from phalanx.run.device.executables import Lowering, block_argument_specs, block_arguments
from phalanx.run.device.sink import SinceKept
from phalanx.run.init_values import UNUSED_DRAW, prior_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Shaped

Position = tuple[np.ndarray, ...]
"""Positions on the host `(coordinate, particle)`, by group of coordinates."""


class Located(NamedTuple):
    """Positions of draws from the prior.

    Attributes:
        position: the positions, `(coordinates, lanes)`.
        fits: true for draws that have a position, `(lanes,)`.
        invalid: number of invalid observations and parameters, by variable and parameter.
    """

    position: Any
    fits: Any
    invalid: Any


class Settled(NamedTuple):
    """Chains between two draws.

    Attributes:
        chains: their state, with the log density, and the gradient if the kernel uses it.
        rows: their positions in the form of recorded draws, from which a metric is learned, or ().
    """

    chains: Any
    rows: Any


@dataclass(frozen=True)
class ParticleBlocks:
    """Functions of a device, to be compiled.

    Attributes:
        blocks: functions of a run of as many chains as particles. A power of the likelihood follows the data's arrays.
        tile: particles that a device evaluates together.
    """

    blocks: Blocks
    tile: int

    @rolled_hashes()
    def prior(self, seed: Array, attempt: Array, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return draws of the latent variables from their prior `(particle, ...)`, functions of seed and number.

        It runs outside of `shard_map`, on the data of all devices.
        """

        def key(particle: Array) -> Array:
            return random.fold_in(random.fold_in(random.key(seed), particle), jnp.uint32(UNUSED_DRAW) - attempt)

        return prior_of(self.blocks.target)(jax.vmap(key)(jnp.arange(self.blocks.num_chains)), arrays)

    @rolled_hashes()
    def locate(self, seed: Array, arrays: Sequence[Array], values: ByVariable) -> Located:
        """Return the positions at which the latent variables have these values, `(particle, ...)` by variable.

        A position also has numbers on which no value depends, which are drawn as functions of seed and particle.
        """
        density = self.blocks.lanes(arrays).density
        layout = self.blocks.layout
        is_wanted = dict.fromkeys(values, jnp.ones((), bool))

        def one(of_one: tuple[ByVariable, Array]) -> tuple[Vector, Bool[Array, ""]]:
            values, particle = of_one
            position, misfits = density.at_values(layout.zeros(), values, is_wanted)
            position = density.with_radii(position, random.fold_in(random.key(seed), particle))
            return layout.vector(position), ~jnp.stack([jnp.any(misfit) for misfit in misfits.values()]).any()

        position, fits = over_lanes(one, self.blocks.count)((values, lane_chains(self.blocks.count)))
        return Located(position.T, fits, density.invalid())

    def likelihood(self, arrays: Sequence[Array], position: Vector) -> Total:
        """Return the log likelihood of every particle, `(lanes,)`."""
        target = self.blocks.lanes(arrays, jnp.arange(self.tile))
        return self._tiled(target.likelihood, position)

    @rolled_hashes()
    def settle(self, seed: Array, arrays: Sequence[Array], position: Vector, first: Int[Array, ""]) -> Settled:
        """Return chains at rest at these positions, about to make the draw of this number."""
        blocks = self.blocks
        target = blocks.lanes(arrays)
        keys = Keys.of_chains(seed, lane_chains(blocks.count))
        tile = blocks.lanes(arrays, jnp.arange(self.tile))
        nothing = Vector((), blocks.layout)

        def evaluate(position: Vector) -> tuple[Total, Vector]:
            if blocks.kernel.machine.uses_gradient:
                return tile.value_and_grad(position)
            return tile.value(position), nothing

        total, gradient = self._tiled(evaluate, position)
        lanes = blocks.adapter.init(Point(position.T, total, gradient.T), first, keys, target)
        rows = blocks.recorder.first(lanes.at, target) if blocks.kernel.learns_moments else ()
        return Settled(ChainState(lanes, SinceKept.none(blocks.count)), rows)

    def values(self, arrays: Sequence[Array], position: Vector) -> dict[str, Shaped[Array, "lanes *shape"]]:
        """Return the variables to keep, `(lanes, ...)`."""
        density = self.blocks.lanes(arrays).density

        def one(position: Vector) -> dict[str, Array]:
            values = density.constrain(position.by_variable())
            return {name: values[name] for name in self.blocks.names}

        return over_lanes(one, self.blocks.count)(position.T)

    @property
    def vector_specs(self) -> Vector:
        """Partition of positions with lanes last."""
        return lane_specs(self.vector_shapes)

    @property
    def vector_shapes(self) -> Vector:
        """Shapes of the positions of all particles, with lanes last."""
        layout = self.blocks.layout
        count = self.blocks.num_chains
        parts = (jax.ShapeDtypeStruct((length, count), layout.dtype) for length in layout.whole_lengths)
        return Vector(tuple(parts), layout)

    def _tiled(self, f: Callable[[Vector], Any], position: Vector) -> PyTree:
        """Return `f` of all lanes, tile by tile; arrays have lanes last."""
        if self.tile == self.blocks.count:
            return f(position)
        count = self.blocks.count
        tiles = -(-self.blocks.count // self.tile)
        tiled_position = jax.tree.map(lambda x: cut_lanes(x, x.ndim - 1, tiles, self.tile), position)
        return jax.tree.map(lambda x: join_lanes(x, x.ndim - 2, count), lax.map(f, tiled_position))


@dataclass(frozen=True)
class Programs:
    """Compiled programs, which contain no data and serve all runs of one model, kernel, number and set of shapes."""

    particles: ParticleBlocks
    prior: Compiled
    locate: Compiled
    likelihood: Compiled
    settle: Compiled
    move: Compiled
    no_records: Compiled
    sums: Compiled
    values: Compiled
    block_length: BlockLength = field(default_factory=BlockLength)

    count: ClassVar[int] = 8
    """Number of compiled programs."""

    @property
    def blocks(self) -> Blocks:
        """Functions of a run of as many chains as particles."""
        return self.particles.blocks

    def drawn(self, seed: int, attempt: int, arrays: Sequence[Array]) -> dict[str, np.ndarray]:
        """Return draws from the prior `(particle, ...)` by variable; each attempt has others."""
        numbers = (self.device_constants.array(np.uint32(number), PartitionSpec()) for number in (seed, attempt))
        return {name: to_host(values) for name, values in self.prior(*numbers, tuple(arrays)).items()}

    @cached_property
    def device_constants(self) -> DeviceConstants:
        """Cache of small arguments on the devices."""
        return DeviceConstants(self.blocks.target.mesh)

    def tempered(self, arrays: Sequence[Array], power: float) -> tuple[Any, ...]:
        """Return the data on the devices, and a power of the likelihood."""
        return (*arrays, self.device_constants.array(np.asarray(power, self.blocks.layout.dtype), PartitionSpec()))

    def placed(self, position: Position) -> Vector:
        """Return positions on the devices."""
        layout = shardings(self.blocks.target.mesh, self.particles.vector_specs)
        return jax.tree.map(to_devices, Vector(tuple(position), self.blocks.layout), layout)

    def settled(self, seed: int, arrays: Sequence[Array], position: Position, first: int) -> Settled:
        """Return chains at rest at these positions, about to make the draw of this number."""
        seed_sent, first_sent = (
            self.device_constants.array(x, PartitionSpec()) for x in (np.uint32(seed), np.int32(first))
        )
        return self.settle(seed_sent, arrays, self.placed(position), first_sent)

    def moved(
        self,
        seed: int,
        arrays: Sequence[Array],
        chains: ChainState,
        tuning: PyTree,
        length: int,
        agree: Callable[[], None],
    ) -> tuple[ChainState, Sums]:
        """Return the chains after `length` draws of each, and sums over these.

        Args:
            seed: seed of the run.
            arrays: the data on the devices, and the power of the likelihood.
            chains: the chains, whose memory is used again.
            tuning: hyperparameters.
            length: draws, at most as many as there are slots.
            agree: called between blocks, where Ctrl-C may end the run.
        """
        number = self.blocks.num_chains
        array = self.device_constants.array
        sinks = self.no_records(arrays, array(np.zeros(number, np.int32), PartitionSpec(CHAIN)))
        tuning = jax.tree.map(np.asarray, tuning)
        seed_sent = array(np.uint32(seed), PartitionSpec())
        layout = shardings(self.blocks.target.mesh, self.blocks.tuning_specs(tuning))
        device_tuning = all_to_devices(tuning, layout)
        while True:
            began = time.perf_counter()
            order = block_arguments(np.full(number, length), self.block_length.ticks, later=tuning)
            device_order = BlockArguments(*map(array, order, block_argument_specs(self.blocks)))
            advanced = self.move(seed_sent, arrays, device_tuning, device_order, chains, sinks)
            chains = advanced.chains
            sinks = advanced.sinks
            self.block_length.learn(int(to_host(advanced.ticks).max()), time.perf_counter() - began)
            agree()
            if (to_host(sinks.count) >= length).all():
                (rows,) = sinks.states
                return chains, self.summed(rows, length)

    def summed(self, rows: PyTree, count: int) -> Sums:
        """Return sums over the first recorded draws of each particle."""
        return self.blocks.summing.fetched(self.sums(rows, np.int32(0), np.int32(count)))


def compile_programs(
    particles: ParticleBlocks, arrays: Sequence[Array], matmul_precision: str, key: Hashable | None = None
) -> Programs:
    """Trace and compile the programs, or read what an earlier process compiled for the same key."""
    blocks = particles.blocks
    key = None if key is None else ("smc", key, particles.blocks.slots, particles.tile)
    with jax.default_matmul_precision(matmul_precision):
        executables: dict[str, Any] = read_or_compile(key, blocks.target.mesh, _lower_programs(particles, arrays))
    return Programs(particles, **executables)


def _lower_programs(particles: ParticleBlocks, arrays: Sequence[Array]) -> Iterator[tuple[str, Lowered, Options]]:
    """Yield each program's name, the lowered program, and compiler options, slow compilations first."""
    blocks = particles.blocks
    target = blocks.target
    everywhere = PartitionSpec()
    chains = PartitionSpec(CHAIN)
    tempered = (*arrays, jax.ShapeDtypeStruct((), blocks.layout.dtype))
    data = (*target.array_specs(), everywhere)
    vector = particles.vector_specs
    seed = np.uint32(0)
    rows = blocks.recorder.specs if blocks.kernel.learns_moments else ()
    settled_specs = Settled(blocks.chain_specs(), rows)
    settle = blocks.jit(particles.settle, (everywhere, data, vector, everywhere), settled_specs)
    settle = settle.trace(seed, tempered, particles.vector_shapes, np.int32(0))
    lowering = Lowering(blocks, tempered)
    move = Advance(blocks, (blocks.recorder,), particles.tile)
    none = lowering.empty(move)
    yield "move", lowering.advance(move, settle.out_info.chains, none.out_info), {}
    yield "settle", settle.lower(), {}
    argument_specs = everywhere, data, target.position_specs(CHAIN)
    locate = blocks.jit(particles.locate, argument_specs, Located(vector, chains, everywhere))
    yield "locate", locate.lower(seed, tempered, blocks.given_shapes().values), RARELY
    likelihood = blocks.jit(particles.likelihood, (data, vector), chains)
    yield "likelihood", likelihood.lower(tempered, particles.vector_shapes), {}
    value_specs = {name: target.sharding(name).spec(CHAIN) for name in blocks.names}
    values = blocks.jit(particles.values, (data, vector), value_specs)
    yield "values", values.lower(tempered, particles.vector_shapes), RARELY
    yield "no_records", none.lower(), {}
    inside = shardings(target.mesh, (everywhere, everywhere, data[:-1]))
    yield "prior", jax.jit(particles.prior, in_shardings=inside).lower(seed, np.uint32(0), tuple(arrays)), RARELY
    (rows_shape,) = none.out_info.states
    yield "sums", lowering.sums(rows_shape), {}
