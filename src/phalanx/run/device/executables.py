"""Compiled blocks of a run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from jax.stages import Compiled, Lowered, Traced

from phalanx.adaptation.tuner import Sums
from phalanx.adaptation.warm_up import WarmUp
from phalanx.language.tracing import Program
from phalanx.mesh.compatibility.jax_internals import RARELY, WIDE, Options
from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.position import Vector
from phalanx.mesh.processes import to_devices, to_host
from phalanx.mesh.specs import PyTree
from phalanx.reducers.reductions import Reductions
from phalanx.run.compile.block_length import BlockLength
from phalanx.run.compile.compilation import compiled, sends_in_order, several_cpus
from phalanx.run.compile.device_constants import DeviceConstants
from phalanx.run.compile.stored_programs import read_or_compile
from phalanx.run.device.advance import Advance, BlockArguments
from phalanx.run.device.blocks import AtPositions, Blocks, InitResult, shardings
from phalanx.run.device.recorder import Rows
from phalanx.run.device.reducing import Reducing
from phalanx.run.device.rounds import Rounds
from phalanx.run.device.sink import Tally
from phalanx.run.device.tiles import Tiles
from phalanx.run.init_values import Initial, prior_of

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped


@dataclass(frozen=True)
class Executables:
    """Compiled blocks, which contain no data and serve all runs of one model, kernel and set of shapes.

    Attributes:
        blocks: functions of the run.
        reducing: sink that reduces draws.
        begin: finds initial positions.
        record: advances chains and records their draws; None if draws are neither stored nor used for tuning.
        no_records: makes the empty records with which `record` begins.
        constrain: computes the stored variables of recorded draws; None without stored draws.
        reduce: passes recorded draws to reducers; None without stored draws or without reducers.
        accumulate: advances chains, and counts and reduces their draws; None if draws are stored.
        empty: makes the empty states with which `accumulate` begins.
        evaluate_at: finds residuals and gradients at positions; None without partially centred variables.
        count: number of programs compiled ahead of time.
        bytes_on_device: memory of the largest program on each device; 0 if the backend does not report it.
        matmul_precision: precision of matrix products.
        block_length: choice of the ticks of a block.
        x64: true if compiled under `jax_enable_x64`.
        rare: programs and checks of `once`, by name.
    """

    blocks: Blocks
    reducing: Reducing
    begin: Callable[..., Any]
    record: Compiled | None = None
    no_records: Compiled | None = None
    constrain: Compiled | None = None
    reduce: Compiled | None = None
    accumulate: Compiled | None = None
    empty: Compiled | None = None
    evaluate_at: Compiled | None = None
    count: int = 0
    bytes_on_device: int = 0
    matmul_precision: str = "float32"
    block_length: BlockLength = field(default_factory=BlockLength)
    x64: bool = False
    rare: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def device_constants(self) -> DeviceConstants:
        """Cache of small arguments on the devices."""
        return DeviceConstants(self.blocks.target.mesh)

    @property
    def stores_draws(self) -> bool:
        """True if draws or their statistics are stored, false if only reducers receive them."""
        return self.accumulate is None

    def start(self, seed: np.uint32, arrays: Sequence[Array], initial: Initial) -> InitResult:
        """Return all chains at their initial positions, given initial values."""
        start_values = initial.given(self.blocks.target, self.blocks.num_chains)
        result: InitResult = self.begin(seed, arrays, start_values)
        if not self.blocks.may_climb or all(start_values.wanted.values()) or not to_host(result.far).any():
            return result
        with jax.default_matmul_precision(self.matmul_precision):
            # compiled for the shapes of its arguments, which are those of `begin`
            program = self.once("climb", lambda: self._climb(seed, tuple(arrays), start_values, result))
        return program(seed, tuple(arrays), start_values, result)

    def _climb(self, *arguments: Any) -> Compiled:
        blocks = self.blocks
        out_specs = self.blocks.init_specs()
        specs = PartitionSpec(), blocks.target.array_specs(), blocks.given_specs(), out_specs
        program = blocks.jit(blocks.climb, specs, out_specs).lower(*arguments)
        several = several_cpus(blocks.target.mesh.devices.flat)
        return compiled(program, RARELY, keep=not (several and sends_in_order(program)))

    def summed_start(self, rows: Rows) -> Sums:
        """Return sums over initial positions and gradients; compiled at the first use, since few runs need it."""
        sums = self.once("sums", lambda: Lowering(self.blocks, ()).sums(rows).compile())
        return self.blocks.summing.fetched(sums(rows, np.int32(0), np.int32(1)))

    @cached_property
    def rounds(self) -> Rounds:
        """Function of `record`, before it was compiled."""
        return rounds_of(self.blocks, Tiles.of(self.blocks, stores_draws(self.blocks, self.reducing.reductions)))

    @cached_property
    def prior(self) -> Callable[..., Any]:
        """Function that draws latent variables from their prior; compiled at the first use."""
        return prior_of(self.blocks.target)

    def log_density_at(self, arrays: Sequence[Array], position: Vector) -> Float[np.ndarray, "chains"]:
        """Return the log density at one position for each chain; compiled at the first use, since few runs need it."""
        blocks = self.blocks
        vectors = Vector(blocks.layout.specs(CHAIN), blocks.layout)
        specs = blocks.target.array_specs(), vectors
        with jax.default_matmul_precision(self.matmul_precision):
            program = self.once(
                "log_density_at", lambda: blocks.jit(blocks.log_density_at, specs, PartitionSpec(CHAIN))
            )
            device_position = jax.tree.map(to_devices, position, shardings(blocks.target.mesh, vectors))
            log_density = program(tuple(arrays), device_position)
        return jax.tree.map(to_host, log_density).in_double()

    def evaluated_at(self, arrays: Sequence[Array], positions: Vector) -> AtPositions:
        """Return the result of `Blocks.evaluated_at` on the host."""
        assert self.evaluate_at is not None
        device_positions = jax.tree.map(
            to_devices, positions, shardings(self.blocks.target.mesh, self.blocks.batch_specs())
        )
        return jax.tree.map(to_host, self.evaluate_at(tuple(arrays), device_positions))

    @property
    def snapshot(self) -> Callable[..., Any]:
        """Program of `Blocks.snapshot`; compiled when chains are first fetched, or recentred."""
        blocks = self.blocks
        return self.once(
            "snapshot", lambda: blocks.jit(blocks.snapshot, (blocks.chain_specs(),), blocks.snapshot_specs())
        )

    @property
    def restore(self) -> Callable[..., Any]:
        """Program of `Blocks.restore`; compiled when a run is first continued, or its chains are recentred."""
        blocks = self.blocks
        specs = PartitionSpec(), blocks.target.array_specs(), blocks.snapshot_specs()
        return self.once("restore", lambda: blocks.jit(blocks.restore, specs, blocks.chain_specs()))

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returns at its first call for any of the models that these blocks serve."""
        if name not in self.rare:
            self.rare[name] = make()
        return self.rare[name]

    def with_slots(self, slots: int, arrays: Sequence[Array]) -> Executables:
        """Return executables whose blocks record so many draws of each chain, compiled anew if these record fewer."""
        if slots <= self.blocks.slots:
            return self
        reducing = replace(self.reducing, blocks=replace(self.blocks, slots=slots))
        return compile_blocks(reducing, arrays, self.matmul_precision)

    def serving(self, program: Program, reductions: Reductions) -> Executables:
        """Return the executables for a model and reducers with the same traces, whose host functions may differ."""
        if program is self.blocks.target.program and reductions == self.reducing.reductions:
            return self
        blocks = replace(self.blocks, target=self.blocks.target.of_program(program))
        return replace(self, blocks=blocks, reducing=replace(self.reducing, blocks=blocks, reductions=reductions))


def _bytes(program: Compiled) -> int:
    memory = program.memory_analysis()
    if memory is None:
        return 0
    argument_bytes = memory.argument_size_in_bytes
    output = memory.output_size_in_bytes
    return argument_bytes + output + memory.temp_size_in_bytes - memory.alias_size_in_bytes


def compile_blocks(
    reducing: Reducing, arrays: Sequence[Array], matmul_precision: str, key: Hashable | None = None
) -> Executables:
    """Trace and compile the blocks of a run, or read what an earlier process compiled for the same key."""
    blocks = reducing.blocks
    with jax.default_matmul_precision(matmul_precision):
        tiles = Tiles.of(blocks, stores_draws(blocks, reducing.reductions))
        key = None if key is None else (key, blocks.slots, tiles)
        executables: dict[str, Any] = read_or_compile(key, blocks.target.mesh, _lower_programs(reducing, arrays, tiles))
    if blocks.target.sites.is_divided and blocks.target.mesh.shape[CHAIN] > 1:
        _refuse_permutations(executables)
    return Executables(
        blocks,
        reducing,
        **executables,
        count=len(executables),
        bytes_on_device=max(map(_bytes, executables.values())),
        matmul_precision=matmul_precision,
        x64=bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
    )


def _refuse_permutations(programs: Mapping[str, Compiled]) -> None:
    """Raise if groups of chains, whose loops end at different turns, would wait for one another in a permutation."""
    for name, program in programs.items():
        if "collective-permute" in (program.as_text() or ""):
            raise RuntimeError(
                f"The compiled program {name!r} sends rows in a ring (collective-permute), and groups of chains on "
                f"several devices would wait for one another for ever. This is a fault of Phalanx: please report the "
                f"model. Give a mesh with chain=1, phx.make_mesh(chain=1), or data that are not sharded."
            )


def stores_draws(blocks: Blocks, reductions: Reductions) -> bool:
    """Return True if draws or their statistics are stored, False if only reducers receive them."""
    return bool(blocks.names) or not reductions.entries


@dataclass(frozen=True)
class Lowering:
    """Lowering of the programs that advance chains or particles.

    Attributes:
        blocks: functions of the run.
        arrays: the data, or their shapes; a power of the likelihood may follow.
    """

    blocks: Blocks
    arrays: Sequence[Any]

    @property
    def array_specs(self) -> tuple[PartitionSpec, ...]:
        """Partition of each array; the power is replicated."""
        specs = self.blocks.target.array_specs()
        return (*specs, *[PartitionSpec()] * (len(self.arrays) - len(specs)))

    def empty(self, advance: Advance) -> Traced:
        """Return the traced program that makes empty sinks."""
        specs = self.array_specs, PartitionSpec(CHAIN)
        program = self.blocks.jit(advance.empty, specs, advance.sink_specs)
        return program.trace(self.arrays, number_shapes(self.blocks))

    def advance(self, advance: Advance | Rounds, chains: Any, sinks: Any) -> Lowered:
        """Return the lowered program of a block that advances chains, and overwrites the states of chains and sinks."""
        blocks = self.blocks
        tuning = first_tuning(blocks)
        specs = PartitionSpec(), self.array_specs, blocks.tuning_specs(tuning), block_argument_specs(blocks)
        # shapes: of several processes JAX takes no array of the host that is sharded
        arguments = map(shapes_of, (tuning, block_arguments(np.zeros(blocks.num_chains), later=tuning)))
        arguments = np.uint32(0), self.arrays, *arguments
        sink_specs = (advance.advance if isinstance(advance, Rounds) else advance).sink_specs
        if isinstance(advance, Rounds):
            rounds = advance.no_rounds()
            arguments = *arguments, shapes_of(rounds)
            specs = *specs, jax.tree.map(lambda _: PartitionSpec(), rounds)
        overwritten = len(arguments), len(arguments) + 1
        program = blocks.jit(advance, (*specs, blocks.chain_specs(), sink_specs), advance.specs, donate=overwritten)
        return program.lower(*arguments, chains, sinks)

    def sums(self, rows: Any) -> Lowered:
        """Return the lowered program of sums over recorded draws."""
        blocks = self.blocks
        specs = blocks.recorder.specs, PartitionSpec(), PartitionSpec()
        with jax.enable_x64(True):
            return blocks.jit(blocks.summing, specs, blocks.summing.specs).lower(rows, *[np.int32(0)] * 2)


def _lower_programs(
    reducing: Reducing, arrays: Sequence[Array], tiles: Tiles
) -> Iterator[tuple[str, Lowered, Options]]:
    """Yield each program's name, the lowered program, and compiler options, slow compilations first."""
    blocks = reducing.blocks
    reductions = reducing.reductions
    lowering = Lowering(blocks, arrays)
    of_chains = PartitionSpec(CHAIN)
    data = lowering.array_specs
    stores = stores_draws(blocks, reductions)
    begin = blocks.jit(blocks.begin, (PartitionSpec(), data, blocks.given_specs()), blocks.init_specs())
    begin = begin.trace(np.uint32(0), arrays, blocks.given_shapes())
    chains = begin.out_info.chains
    rows = None
    if stores or blocks.kernel.tuners:
        record = Advance(blocks, (blocks.recorder,), tiles.record)
        none = lowering.empty(record)
        (rows,) = none.out_info.states
        yield "record", lowering.advance(rounds_of(blocks, tiles), chains, none.out_info), {}
        yield "no_records", none.lower(), {}
    if not stores:
        accumulate = Advance(blocks, (Tally(), reducing), tiles.accumulate)
        empty = lowering.empty(accumulate)
        options = WIDE if Workaround.WIDE_VECTORS.is_on else {}
        yield "accumulate", lowering.advance(accumulate, chains, empty.out_info), options
        yield "empty", empty.lower(), {}
    yield "begin", begin.lower(), RARELY
    if stores:
        specs = data, blocks.recorder.specs
        constrain = blocks.jit(blocks.constrain, specs, blocks.value_specs())
        yield "constrain", constrain.lower(arrays, rows), {}
        if reductions.entries:
            reduce = blocks.jit(reducing.of_rows, (*specs, of_chains, of_chains), reducing.specs)
            number = number_shapes(blocks)
            yield "reduce", reduce.lower(arrays, rows, number, number), {}
    if blocks.is_centred:
        evaluate_at = blocks.jit(blocks.evaluated_at, (data, blocks.batch_specs()), blocks.evaluated_specs())
        yield "evaluate_at", evaluate_at.lower(arrays, blocks.batch_shapes()), {}


def rounds_of(blocks: Blocks, tiles: Tiles) -> Rounds:
    """Return the function of a block that records draws."""
    kernel = blocks.kernel
    warm_up = WarmUp(kernel.tuners, kernel.tuning, 0, runs_ahead=not kernel.machine.makes_whole_draws)
    return Rounds.of(Advance(blocks, (blocks.recorder,), tiles.record), warm_up)


def block_arguments(
    draws: Shaped[np.ndarray, "chains"],
    ticks: int = 1,
    thin: int = 1,
    *,
    ahead: int = 0,
    later: Any = None,
    at_least_one: bool = False,
) -> BlockArguments:
    """Return arguments in the types that blocks are compiled for, with the step size of the tuning `later`."""
    most = np.int32(min(ticks, np.iinfo(np.int32).max))
    step_size = getattr(later, "step_size", np.float32(0))
    return BlockArguments(
        most, draws.astype(np.int32), np.int32(thin), np.int32(ahead), np.asarray(step_size), np.bool_(at_least_one)
    )


def number_shapes(blocks: Blocks) -> jax.ShapeDtypeStruct:
    """Return the shape of a whole number for each chain."""
    return jax.ShapeDtypeStruct((blocks.num_chains,), np.int32)


def shapes_of(tree: PyTree) -> PyTree:
    """Return the shapes of the arrays of a tree."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), tree)


def block_argument_specs(blocks: Blocks) -> BlockArguments:
    """Return the partition of the arguments of a block."""
    specs = BlockArguments(*[PartitionSpec()] * len(BlockArguments._fields))
    return specs._replace(draws=PartitionSpec(CHAIN), later=blocks.group_spec)


def first_tuning(blocks: Blocks) -> Any:
    """Return the kernel's tuning at the beginning of warm-up."""
    kernel = blocks.kernel
    return jax.tree.map(np.asarray, WarmUp(kernel.tuners, kernel.tuning, 0).begin(blocks.no_sums()).tuning)
