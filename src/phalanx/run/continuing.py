"""Checks that a saved run matches a sampler; otherwise its further draws would target no posterior."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from phalanx.adaptation.metric import LowRankMetric
from phalanx.inputs.known_data import Names as NamesOfData
from phalanx.inputs.recoding import listed
from phalanx.kernels.protocol.adapter import Snapshot
from phalanx.mesh.chains import HeldChains
from phalanx.mesh.compatibility.compiler_settings import warn_of_other_settings
from phalanx.mesh.output import warn
from phalanx.mesh.random_numbers import is_key
from phalanx.mesh.specs import PyTree
from phalanx.posterior.posterior import Posterior
from phalanx.programs.centring import first_centring, place_centring
from phalanx.run.device.advance import SinkState
from phalanx.run.device.blocks import ChainState
from phalanx.run.device.executables import Executables, first_tuning
from phalanx.run.device.sink import Counts, SinceKept
from phalanx.run.host.unshard import reshard, unshard
from phalanx.run.state import DrawsByName, Reduced, RunArguments, RunState, Stored, Work

RELATIVE = 1e-6
"""Relative tolerance for log densities computed on different numbers of devices. In a sum over many rows a change of
the data that is smaller than the rounding error goes unnoticed."""

ABSOLUTE = 1e-2
"""Absolute tolerance for the same."""

ROUGHLY = 1e-5
"""Relative tolerance if matrix products have a lower precision than float32."""


@dataclass(frozen=True)
class ContinuationChecks:
    """Checks of runs to be continued, and of posteriors whose tuning is used, against a sampler.

    Attributes:
        executables: the sampler's compiled blocks.
        kernel: the sampler's kernel as the user would write it.
    """

    executables: Executables
    kernel: str

    def state_of(self, posterior: Posterior) -> RunState:
        """Return the state of a run, with the blocks' classes in place of the plain tuples of a file.

        Its draws are those of the chains that this process holds.

        Raises:
            ValueError: when the run does not match the sampler.
        """
        state = _known_state(posterior)
        blocks = self.executables.blocks
        stored_draws = tuple(posterior.draws) or tuple(name for name in blocks.names if name in state.stored.draws)
        was = (posterior.num_chains, stored_draws)
        now = (blocks.num_chains, blocks.names)
        no_draws = state.in_warm_up or not (state.stored.counts.any() or state.reduced.draws or state.sinks)
        if was != now and not (posterior.num_chains == blocks.num_chains and no_draws):
            raise ValueError(
                f"continue_run: the posterior has {was[0]} chains of {', '.join(map(repr, was[1])) or 'no variables'}; "
                f"this sampler was compiled for {now[0]} chains of {', '.join(map(repr, now[1])) or 'no variables'}."
            )
        if posterior.record.kernel != self.kernel:
            raise ValueError(
                f"continue_run: the posterior was drawn by {posterior.record.kernel}; this sampler was compiled for "
                f"{self.kernel}."
            )
        self.executables.reducing.reductions.check_superchains(state.arguments.superchains)
        self._check_types(state)
        self._check_reducers(posterior, state)
        self._check_correlated(posterior, state)
        try:
            state = self._in_classes(state)
        except ValueError as error:
            raise ValueError(
                f"continue_run: the posterior is of another model, kernel or set of reducers: {error}. Compile with "
                f"the model, kernel and reducers of the posterior."
            ) from None
        _check_lengths(posterior, state.stored.count)
        if posterior.record.mesh == blocks.target.mesh.shape:  # on another mesh sums round differently anyway
            warn_of_other_settings("continue_run: the run", posterior.record.compiler)
        held_chains = blocks.held_chains
        stored_draws = state.stored.part(held_chains)
        if posterior.stats:
            draws, stats = (
                draws_of_held_chains(posterior, arrays, held_chains) for arrays in (posterior.draws, posterior.stats)
            )
            stored_draws = stored_draws.with_first_draws(draws, stats)
        return state._replace(stored=stored_draws)

    def _check_reducers(self, posterior: Posterior, state: RunState) -> None:
        """Raise if the draws so far had other reducers, which would receive the later draws only."""
        was = set(posterior.reduced)
        now = {name for name, _ in self.executables.reducing.reductions.entries}
        # draws of a round under way are in the sinks, and in no reducer yet
        has_draws = state.stored.count or state.reduced.draws or (state.sinks is None and state.stored.counts.any())
        if was != now and has_draws and not state.in_warm_up:
            had, has = (", ".join(map(repr, sorted(names))) or "none" for names in (was, now))
            raise ValueError(
                f"continue_run: the posterior has the reducers {had}, and this sampler was compiled with {has}: their "
                f"results would lack the draws so far. Compile with the reducers of the posterior."
            )

    def _check_correlated(self, posterior: Posterior, state: RunState) -> None:
        """Raise if the metric's correlations cover another number of coordinates than this mesh leaves unsharded."""
        blocks = self.executables.blocks
        there = posterior.record.mesh
        example = unshard(first_tuning(blocks), blocks.layout)
        leaves = jax.tree.leaves(state.tuning)
        is_low_rank = isinstance(getattr(example, "metric", None), LowRankMetric)
        if there == blocks.target.mesh.shape or not is_low_rank or len(leaves) != len(jax.tree.leaves(example)):
            return
        was = len(jax.tree.unflatten(jax.tree.structure(example), leaves).metric.directions)
        if was != (now := len(example.metric.directions)):
            raise ValueError(
                f"continue_run: on the mesh {dict(there)} the metric has correlations of the {was:,} coordinates that "
                f"are not sharded there, and on the mesh {dict(blocks.target.mesh.shape)} {now:,} are not sharded. "
                f"Continue on a mesh that shards the same variables, or start a run with init=posterior."
            )

    def _check_types(self, state: RunState) -> None:
        """Raise if a run has another floating-point type, such as float32 under `jax_enable_x64`."""
        position = getattr(getattr(state.chains.lanes, "at", None), "position", None)
        for latent in self.executables.blocks.target.sites.latents:
            value = position.get(latent.name) if isinstance(position, dict) else None
            if value is not None and (was := np.asarray(value).dtype) != latent.dtype:
                raise ValueError(
                    f"continue_run: the posterior's variable {latent.name!r} was computed in {was}, and this sampler "
                    f"computes in {latent.dtype}: its draws would not be those of one run. Compile in {was} "
                    f"(jax.config.update('jax_enable_x64', {was == np.float64})), or run anew with init=posterior and "
                    f"tuning=posterior."
                )

    def tuning_of(self, posterior: Posterior) -> PyTree:
        """Return the tuning of a posterior as initial hyperparameters of another run.

        Raises:
            ValueError: when the posterior has another kernel or other variables.
        """
        was, now = (kernel.partition("(")[0] for kernel in (posterior.record.kernel, self.kernel))
        if was != now:
            raise ValueError(
                f"tuning: the posterior was drawn by phx.{was}, and the kernel is phx.{now}. Give a posterior of "
                f"phx.{now}, or leave out tuning=."
            )
        state = _known_state(posterior)
        blocks = self.executables.blocks
        if state.in_warm_up:
            raise ValueError(
                "tuning: the posterior is of a run that is still in warm-up. Complete it with continue_run, and pass "
                "the posterior that continue_run returns."
            )
        self._check_centring(state)
        tuning = state.tuning
        example = unshard(first_tuning(blocks), blocks.layout)
        try:
            new_tuning = _like(example, tuning, "the kernel's tuning")
            _check_shapes(new_tuning, example)
        except ValueError as error:
            raise ValueError(f"tuning: the posterior has other variables or another metric: {error}.") from None
        new_tuning = jax.tree.map(lambda leaf, like: np.asarray(leaf, like.dtype), new_tuning, example)
        return reshard(new_tuning, blocks.layout)

    def _check_centring(self, state: RunState) -> None:
        """Raise unless the tuning belongs to positions of the same partially centred variables."""
        first = first_centring(self.executables.blocks.target.program)
        was, now = ({name: np.shape(of) for name, of in centring.items()} for centring in (state.centring, first))
        if was != now:
            had, has = (", ".join(map(repr, names)) or "no variable" for names in (was, now))
            raise ValueError(
                f"tuning: the posterior's step size and metric belong to positions with a centring of {had}, and those "
                f"of this run have one of {has}. Give the same centring= and sharding, or leave out tuning=."
            )

    def check_log_density(self, state: RunState, arrays: tuple[jax.Array, ...], same_data: bool = False) -> None:
        """Raise unless the log density at the chains' positions equals the one that the run recorded.

        Minibatch kernels record estimates from different rows, which cannot be compared: they give a warning.
        `same_data` means that the data were compared already.
        """
        blocks = self.executables.blocks
        at = state.chains.lanes.at
        if blocks.kernel.batch_size is not None:
            warn(
                f"continue_run: it was not checked that the posterior is of this "
                f"model{'' if same_data else ' and of these data'}, since phx.{self.kernel.partition('(')[0]} computes "
                f"the log density of minibatches only. Make sure that the posterior was drawn with this "
                f"model{'' if same_data else ' and these data'}.",
                stacklevel=2,
            )
            return
        arrays = place_centring(blocks.target.arguments, arrays, state.centring, blocks.target.mesh)
        position = blocks.layout.of_whole(at.position, zero=True)
        log_density = self.executables.log_density_at(arrays, position)
        recorded_log_density = at.log_density.in_double()
        relative = RELATIVE if self.executables.matmul_precision == "float32" else ROUGHLY
        if not np.allclose(log_density, recorded_log_density, rtol=relative, atol=ABSOLUTE):
            chain = int(np.argmax(np.abs(log_density - recorded_log_density)))
            raise ValueError(
                f"continue_run: at the position of chain {chain} the posterior's log density was "
                f"{recorded_log_density[chain]:.8g}; that of this model on these data is {log_density[chain]:.8g}. "
                f"Continue with the model and the data that the posterior was drawn with."
            )

    def _in_classes(self, state: RunState) -> RunState:
        blocks = self.executables.blocks
        tuning = unshard(first_tuning(blocks), blocks.layout)
        snapshot = Snapshot(*_like(blocks.snapshot_shapes, state.chains.lanes, "the state of the chains"))
        self._check_snapshot(snapshot)
        new_tuning = _like(tuning, state.tuning, "the kernel's tuning")
        _check_shapes(new_tuning, tuning)
        return RunState(*state)._replace(
            arguments=RunArguments(*state.arguments),
            chains=ChainState(snapshot, SinceKept(*state.chains.since)),
            tuning=new_tuning,
            sinks=self._sinks(state.sinks),
            stored=Stored(*state.stored),
            reduced=self._reduced(Reduced(*state.reduced)),
            warmup=Work(*state.warmup),
            sampling=Work(*state.sampling),
            warmed=None if state.warmed is None else Stored(*state.warmed),
            settling=None if state.settling is None else Stored(*state.settling),
        )

    def _sinks(self, saved_sinks: SinkState | None) -> SinkState | None:
        """Return the sinks with the states of a user's reducers in their classes."""
        if saved_sinks is None or len(saved_sinks.states) == 1:
            return saved_sinks
        counts, states = saved_sinks.states
        placements = self.executables.reducing.placements
        states = {name: _of_user(placements[name], parts) for name, parts in states.items()}
        return SinkState(saved_sinks.count, (Counts(*counts), states))

    def _reduced(self, saved_state: Reduced) -> Reduced:
        placements = self.executables.reducing.placements
        if saved_state.draws and set(saved_state.states) != set(placements):
            raise ValueError(f"it has the reducers {', '.join(map(repr, saved_state.states)) or 'none'}")
        return saved_state._replace(
            states={name: _of_user(placements[name], parts) for name, parts in saved_state.states.items()}
        )

    def _check_snapshot(self, snapshot: Snapshot) -> None:
        blocks = self.executables.blocks
        layout = self.executables.blocks.layout
        for node in jax.tree.leaves(snapshot, is_leaf=lambda node: isinstance(node, dict)):
            for name, shape in layout.whole_shapes.items() if layout.is_position(node) else ():
                _same_shape(repr(name), node[name], (blocks.num_chains, *shape))
        for leaf, example in zip(
            jax.tree.leaves(snapshot.kernel_state), jax.tree.leaves(blocks.snapshot_shapes.kernel_state), strict=True
        ):
            _same_shape("the kernel's state", leaf, (blocks.num_chains, *example.shape[1:]))


@dataclass(frozen=True)
class SamplerContinuation:
    """Sampler and state of a run: the `Continuation` of its posterior."""

    sampler: Any
    state: Callable[[], RunState]

    def saved(self) -> RunState:
        """Return the state of the run in a form that a file can hold."""
        return self.state().plain

    def contents(self) -> Mapping[str, str]:
        """Return a checksum of each array of the data; empty if the data cannot be read.

        The data's memory may be donated, and one of several processes cannot read the data alone: it would wait for the
        others.
        """
        arrays = self.sampler.arrays
        if jax.process_count() > 1 or any(array.is_deleted() for array in arrays):
            return {}
        return self.sampler.arguments(arrays).fingerprints()

    def continue_run(self, posterior: Posterior, num_samples: int, **options: Any) -> Posterior:
        """Return the posterior of a longer run."""
        return self.sampler.continue_run(posterior, num_samples, **{**self.sampler.continued, **options})


def since_kept(posterior: Posterior, state: RunState, num_samples: int) -> int:
    """Return the number of iterations after the last draw that thinning kept, fewer than `thin`.

    One longer run would count them towards its next draw. A run that stopped early has none.

    Raises:
        ValueError: when `num_samples` more iterations are too few for another draw.
    """
    num_kept = max(state.stored.count, state.reduced.draws)
    thin = state.arguments.thin
    num_left = 0 if state.in_warm_up else posterior.record.num_samples - thin * num_kept
    num_left = num_left if 0 <= num_left < thin else 0
    # the sinks may hold draws of an incomplete round of draws that are not stored
    sinks = None if state.in_warm_up or state.stored.counts.any() else state.sinks
    least = 1 if sinks is None else max(1, int(np.max(sinks.count)))
    if num_samples + num_left < thin * least:
        few = f"gives no draw that thin={thin} keeps" if least == 1 else "is less than the draws that a chain has made"
        raise ValueError(f"continue_run: num_samples={num_samples} {few}; give at least {thin * least - num_left}.")
    return num_left


def check_contents(saved_checksums: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raise if the checksums of the data differ from those of the run's data."""
    if other := [name for name in {**saved_checksums, **here} if saved_checksums.get(name) != here.get(name)]:
        raise ValueError(
            f"continue_run: data: {', '.join(other)} {'differ' if len(other) > 1 else 'differs'} in at least one value "
            f"from the posterior's data. Continue with the data that the posterior was drawn with, or start a new run "
            f"with init=posterior and tuning=posterior."
        )


def check_same_names(there: NamesOfData | None, here: NamesOfData | None) -> None:
    """Raise if a run's data number their levels or columns in another order."""
    if there is None or here is None:
        return
    for name in {**there, **here}:
        was = there.get(name)
        now = here.get(name)
        if was != now:
            texts = ["no names" if names is None else f"the {names[0]} {listed(names[1])}" for names in (was, now)]
            raise ValueError(
                f"continue_run: {name} has {texts[1]} in this sampler's data, and {texts[0]} in the posterior's. Give "
                f"the data again: continue_run(posterior, num_samples, data=...) numbers them as the posterior does."
            )


def _known_state(posterior: Posterior) -> RunState:
    """Return the state of a run; raise if another release saved it, since its entries have no names."""
    state = posterior.state
    if not isinstance(state, RunState):
        raise ValueError(
            "The posterior was saved by another release of Phalanx, whose state this one cannot read. Start a new run "
            "with init=posterior."
        )
    return state


def draws_of_held_chains(posterior: Posterior, arrays: DrawsByName, held_chains: HeldChains) -> DrawsByName:
    """Return the draws of the chains that this process holds, given those of a posterior, which may be of others."""
    if posterior.held_draws is not None and posterior.held_draws.held == held_chains:
        return arrays
    gather = (lambda values: values) if posterior.held_draws is None else posterior.held_draws.held.gathered
    return {name: held_chains.part(gather(values)) for name, values in arrays.items()}  # pyright: ignore[reportArgumentType]


def _check_lengths(posterior: Posterior, count: int) -> None:
    for name, values in {**posterior.stats, **posterior.draws}.items():
        if values.shape[1] != count:
            raise ValueError(
                f"continue_run: {name!r} has {values.shape[1]} draws of each chain, and the run has made {count}. "
                f"Continue the posterior as the run returned it."
            )


def _like(template: PyTree, tree: PyTree, what: str) -> PyTree:
    """Return the leaves of a tree in the structure of `template`, keys restored from numbers."""
    leaves = jax.tree.leaves(tree)
    structure = jax.tree.structure(template)
    if len(leaves) != structure.num_leaves:
        raise ValueError(f"{what} has {len(leaves)} arrays, and {structure.num_leaves} are expected")
    return jax.tree.unflatten(structure, map(_as_key, leaves, jax.tree.leaves(template)))


def _as_key(leaf: PyTree, like: Any) -> PyTree:
    if not is_key(like) or is_key(leaf):
        return leaf
    return jax.random.wrap_key_data(jnp.asarray(leaf), impl=jax.random.key_impl(like))


def _of_user(template: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """Return the states of a user's reducer in their classes; those of Phalanx are read from files as they are."""

    def one(part: str) -> PyTree:
        state = parts[part]
        structure = jax.tree.structure(template[part])
        is_ours = type(state).__module__.startswith("phalanx.")
        return state if is_ours else jax.tree.unflatten(structure, jax.tree.leaves(state))

    if set(parts) != set(template):
        raise ValueError(f"a reducer has the results {', '.join(map(repr, parts))}")
    return {part: one(part) for part in parts}


def _check_shapes(tuning: PyTree, example: PyTree) -> None:
    for (path, leaf), like in zip(jax.tree_util.tree_leaves_with_path(tuning), jax.tree.leaves(example), strict=True):
        _same_shape(f"tuning{jax.tree_util.keystr(path)}", leaf, np.shape(like))


def _same_shape(what: str, values: ArrayLike, shape: tuple[int, ...]) -> None:
    if np.shape(values) != shape:
        raise ValueError(f"{what} has shape {np.shape(values)}, and {shape} is expected")
