"""One run of compiled blocks, from the first position to the last draw."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.adaptation.strays import Move
from phalanx.adaptation.tuner import Batch
from phalanx.adaptation.warm_up import WarmUp, WarmUpState
from phalanx.kernels.driver import Rest, Start
from phalanx.kernels.kernel import Kernel
from phalanx.kernels.low_rank import LowRank
from phalanx.kernels.whole import by_group, by_variable, fetched, placed
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.processes import Interrupts, agreed, to_devices, to_host
from phalanx.run.blocks import Order, Underway
from phalanx.run.checks import check_beginning
from phalanx.run.executables import Executables, order_of, shardings
from phalanx.run.folding import Fold
from phalanx.run.host import HostBlock, HostDraws, Latest, fetch_block
from phalanx.run.host_fold import HostFold
from phalanx.run.initial import Initial
from phalanx.run.landscape import landscape_of
from phalanx.run.portable import on_mesh, portable
from phalanx.run.progress import Progress, Report
from phalanx.run.record_draws import Partial
from phalanx.run.state import Aim, RunState, Stored, Work
from phalanx.run.until import Until

FULLNESS = 0.9
"""How full the slots of a block should be when it ends: chains whose slots are full wait for the others."""

UNTIL_ROOM = 1024
"""Draws of each chain that room is made for at first, where nobody knows how many there will be."""


class Run:
    """One run: where the chains are, and what has been counted."""

    def __init__(
        self, executables: Executables, kernel: Kernel, seed: int, arrays: tuple[Array, ...], aim: Aim,
        progress: Progress, on_block: Callable[[Report], Any] | None = None,
    ):  # fmt: skip
        self.interrupts = Interrupts()
        self.executables, self.kernel, self.arrays, self.aim = executables, kernel, arrays, aim
        self.blocks, self.progress = executables.blocks, progress
        self._marks = on_block is not None
        """Whether somebody may ask for the run's state where it cannot be told from what is on the devices then."""
        self._marked: RunState | None = None
        self._on_block = (progress.show,) if on_block is None else (progress.show, on_block)
        self.seed = np.uint32(seed)
        self.warmup, self.sampling = Work(evaluations=self.blocks.num_chains), Work()
        self.moves: list[Move] = []
        self.rounds: list[dict[str, Any]] = []
        self.told = HostFold.of(executables.folding)
        self.host: HostDraws | None = None
        self.interrupted, self._acceptance = False, math.nan
        self._latest: Latest | None = None
        self._mean_steps, self._abandon = 1.0, False
        self._draws = np.ones(self.blocks.num_chains, np.int64)  # the number of each chain's first draw in sampling
        self.so_far: Callable[[], Any] | None = None
        """What makes a posterior of the run so far, for whoever is told of a block."""

    @classmethod
    def resumed(
        cls, executables: Executables, kernel: Kernel, state: RunState, arrays: tuple[Array, ...], progress: Progress,
        on_block: Callable[[Report], Any] | None = None,
    ) -> Run:  # fmt: skip
        """A run that goes on from a state."""
        aim = Aim(state.num_warmup, state.thin, state.init, state.superchains)
        run = cls(executables, kernel, state.seed, arrays, aim, progress, on_block)
        run.warmup, run.sampling, run.moves = state.warmup, state.sampling, [Move(*move) for move in state.moves]
        run.rounds = list(state.rounds)
        run.told = HostFold.of(executables.folding, state.reduced)
        return run

    def begin(self, initial: Initial) -> None:
        """Find where to begin, and tune."""
        begun = self.executables.start(self.seed, self.arrays, initial)
        initial.check(begun.misfits)
        check_beginning(self.blocks, begun, self.arrays, tuple(initial.values))
        self._underway = begun.underway
        position, gradient = ([to_host(part) for part in x] for x in (begun.position, begun.gradient))
        if initial.superchains:
            leaders = initial.leaders(self.blocks.num_chains)
            self._put_beside(leaders)
            position, gradient = ([part[leaders] for part in x] for x in (position, gradient))
        self._warm_up(position, gradient, None)

    def _warm_up(self, position: list[np.ndarray], gradient: list[np.ndarray], tuners: WarmUpState | None) -> None:
        """Tune, from where the chains are, with what warm-up has learned before."""
        num_warmup, chains = self.aim.num_warmup, np.arange(self.blocks.num_chains)
        self._last = position
        landscape = landscape_of(self.executables, self.arrays, int(self.seed))
        warm_up = WarmUp(self.kernel, len(chains), num_warmup, Batch(position, gradient, {}, chains), landscape)
        if tuners is not None:
            warm_up.go_on(tuners)
        self._use(warm_up)
        self._mark(warm_up.state)
        if not (warm_up.abandon or warm_up.over or self.kernel.machine.in_step):
            self._rest_a_tick()
        if self.executables.advance is None:
            self._burn_in(num_warmup)
            return
        divergences = sum(told["divergences"] for told in self.rounds)
        while not warm_up.over:
            used = self._tuning
            drawn = self._round(warm_up)
            if len(drawn.chain):
                self._last = [part[::-1] for part in drawn.position] or self._last
            warm_up.learn(drawn)
            self._use(warm_up)
            if warm_up.moves:
                self._move(warm_up.moves)
            divergences += int(drawn.stats["diverging"].sum())
            self._note(used, drawn, warm_up)
            if warm_up.state is not None:
                self._mark(warm_up.state)
            done = min(int(warm_up.iterations), num_warmup)
            self._show("warm-up", done, num_warmup, drawn.stats["acceptance_rate"], divergences)
        self._mean_steps = warm_up.mean_steps

    def _mark(self, tuners: WarmUpState | None) -> None:
        """Keep the run's state, for whoever asks before the next mark: from here its draws are made again."""
        if self._marks:
            self._marked = self._state()._replace(tuners=portable(tuners, self.blocks.target))

    def _note(self, used: Any, drawn: Batch, warm_up: WarmUp) -> None:
        """Note down a round of warm-up, which used a tuning."""
        rates = drawn.stats["acceptance_rate"]
        told = {
            "iteration": warm_up.iterations,
            "step_size": float(used.step_size),
            "acceptance_rate": float(rates.mean(dtype=np.float64)) if rates.size else math.nan,
            "divergences": int(drawn.stats["diverging"].sum()),
            "metric_changed": self._new_metric,
            "moved_chains": len(warm_up.moves),
        }
        if self.kernel.tunes_trajectory:
            told["trajectory_length"] = float(used.trajectory_length)
        self.rounds.append(told)

    @property
    def warmup_record(self) -> dict[str, np.ndarray]:
        """How warm-up went, by name: an array `(round,)`."""
        names = self.rounds[0] if self.rounds else ()
        return {name: np.array([told[name] for told in self.rounds]) for name in names}

    def _burn_in(self, num_warmup: int) -> None:
        """A warm-up in which nothing is tuned, and so nothing looked at."""
        told, self.told = self.told, HostFold.of(self.executables.folding)
        self.fold(num_warmup, math.inf, phase="warm-up")
        self.warmup, self.sampling = Work(self.sampling.ticks, self.warmup.evaluations + self.told.evaluations), Work()
        self.told = told

    def fold(self, num_samples: int, seconds: float, phase: str = "sampling") -> None:
        """Draw into the reducers: `num_samples // thin` draws more of every chain, or until the time is over.

        Chains make draws in rounds, which all of them end: where short trajectories are taken there would be more
        draws of the same time, and what reducers know would lean to these places.
        """
        host, began, is_sampling = self.told, time.monotonic(), phase == "sampling"
        before, evaluations, thin = host.draws, host.evaluations, self.aim.thin if is_sampling else 1
        total, most = before + num_samples // thin, host.stretch(self.blocks.num_chains)
        # each round is as long as all before, and the first as short as can be: Ctrl-C loses the round under way
        draws = min(1 if math.isfinite(seconds) else max(before, 1), total - before, most)
        while draws and not self.interrupted:
            started, known = time.monotonic(), None
            if is_sampling:
                self._mark(None)
            try:
                for known in self._stretch(draws, thin):
                    done, rates = (to_host(known.tally.draws), to_host(known.tally.acceptance))
                    made = np.maximum(to_host(known.tally.made), 1)
                    drawn = host.draws + int(done.min())
                    rate = (drawn - before) * thin * self.blocks.num_chains / (time.monotonic() - began)
                    self._show(phase, drawn, total, rates / made, host.divergences, rate)
            except KeyboardInterrupt:
                self.interrupted = True
            if known is not None and (to_host(known.tally.draws) == draws).all():
                host.add(known)
            if self.interrupted and host.draws and is_sampling:
                self.progress.say(f"Interrupted: returning what {host.draws:,} of {total:,} draws per chain told.")
            now = time.monotonic()
            fitting = draws * (began + seconds - now) / max(now - started, 1e-9)
            draws = int(agreed(max(0, min(host.draws, most, total - host.draws, fitting))))
        self.sampling = self.sampling._replace(evaluations=self.sampling.evaluations + host.evaluations - evaluations)
        if self.interrupted and (not is_sampling or not host.draws):
            raise KeyboardInterrupt
        if not self.interrupted:  # else what is lost of a round is made again
            self._marked = None

    def _stretch(self, draws: int, thin: int) -> Iterator[Fold]:
        """What is known, again and again, while each chain makes `draws`."""
        goal, fold, enough = np.full(self.blocks.num_chains, draws), self.executables.empty(self.arrays), False
        while not enough:
            order, began = self._order(goal, self.executables.pace.ticks, thin), time.perf_counter()
            arguments = self.seed, self.arrays, self._tuning, order, self._underway, fold
            self._underway, fold, made = self.executables.fold(*arguments)
            self._abandon = False
            enough, ticks = bool((to_host(fold.tally.draws) >= draws).all()), int(to_host(made).max())
            self.executables.pace.learn(ticks, time.perf_counter() - began)
            self.sampling = self.sampling._replace(ticks=self.sampling.ticks + ticks)
            yield fold

    def sample(self, num_samples: int, until: Until | None, stored: Stored | None = None) -> HostDraws:
        """Draw, until every chain has `num_samples // thin` draws more, or `until` is met."""
        thin, self._marked = self.aim.thin, None
        total = num_samples // thin
        stored = stored or Stored({}, {}, np.zeros(self.blocks.num_chains, np.int64))
        before, room = stored.count, total + stored.count if until is None else min(total, UNTIL_ROOM)
        self.host = host = HostDraws(self.blocks, before + total, room, stored, self._latest)
        watch = None if until is None else until.watch(host, self.blocks.names)
        try:
            while host.left.any() and not (watch and watch.is_met()):
                goal = host.left if watch is None else np.minimum(host.left, np.maximum(watch.next - host.counts, 0))
                self._add_block(host, goal, thin)
            while self.executables.reduce is not None and host.count < host.counts.max():
                self._add_block(host, host.counts.max() - host.counts, thin)  # reducers have seen draws of all chains
        except KeyboardInterrupt:
            if not host.count:
                raise
            self.interrupted = True
            self.progress.say(f"Interrupted: returning the {host.count} of {host.total} draws per chain made so far.")
        self.told.ahead = int(host.counts.max() - host.count)
        return host

    def _add_block(self, host: HostDraws, goal: np.ndarray, thin: int) -> None:
        """Store at most these draws of each chain."""
        values, states, block = self._block(goal, thin)
        host.add(values, block)
        if states is not None:
            self.told.add_states(states)
        self._show("sampling", host.count, host.total, block.stats["acceptance_rate"], host.divergences)

    def positions(self, count: int) -> list[dict[str, np.ndarray]]:
        """Positions of the chains in the latest round of warm-up, whole and unpadded, by variable."""
        count = min(count, *map(len, self._last))
        return [by_variable(self.blocks.target, [part[i] for part in self._last]) for i in range(count)]

    @property
    def draws(self) -> int:
        """Draws that every chain has, of which what becomes of them is known here."""
        return self.told.draws if self.host is None else self.host.count

    @property
    def state(self) -> RunState:
        """The run as a value, from which it goes on to the same draws."""
        return self._state() if self._marked is None else self._marked

    def _state(self) -> RunState:
        """The run as it is now."""
        rest, since = self._rest(self.aim.thin)
        stored = Stored({}, {}, np.zeros(1, int)) if self.host is None else self.host.stored.rest
        moves = tuple((move.chain, move.beside, move.log_share) for move in self.moves)
        return RunState(
            int(self.seed), *self.aim[:3], rest, since, portable(self._tuning, self.blocks.target),
            float(self._mean_steps), stored, self.told.known, self.warmup, self.sampling, moves, tuple(self.rounds),
            superchains=self.aim.superchains,
        )  # fmt: skip

    def _rest(self, thin: int) -> tuple[Rest, Partial]:
        """Where chains are between two draws, and their draws since the last one kept."""
        target, nothing = self.blocks.target, np.zeros(self.blocks.num_chains, np.int32)
        if self.host is not None and self.host.latest is not None and self._replays:
            # chains may be within a trajectory, or, after an interrupt, a block ahead of what is stored: of each the
            # last draw kept, after which it replays what came since
            latest, draws = self.host.latest, self._draws + thin * self.host.counts
            position, gradient = (by_variable(target, x) if x else {} for x in (latest.position, latest.gradient))
            since = Partial(nothing, nothing, nothing.astype(bool))
            return Rest(draws.astype(np.int32), Start(position, latest.log_density, gradient), ()), since
        if self.interrupted and self.host is None:  # within a round of which nothing is known: one draw ends it
            for _ in self._stretch(1, 1):
                pass
        rest = self.executables.rest(self.arrays, self._underway)
        return fetched(rest, target), jax.tree.map(to_host, self._underway.partial)

    @property
    def _replays(self) -> bool:
        """Whether what is stored of a draw is all that the next one needs."""
        has_gradient = self.blocks.row_layout.parts == 2 or not self.kernel.uses_gradient
        return has_gradient and not self.blocks.machine.is_of_one_chain

    def go_on(self, state: RunState) -> None:
        """Put the chains, and the tuning, where they were."""
        mesh, target = self.blocks.target.mesh, self.blocks.target
        tuning = on_mesh(state.tuning, target)
        if isinstance(metric := getattr(tuning, "metric", None), LowRank):
            layout = shardings(mesh, self.blocks.tuning_specs(metric))
            tuning = tuning._replace(metric=jax.tree.map(to_devices, metric, layout))
        self._tuning, self._mean_steps, self._abandon = tuning, state.mean_steps, False
        rest, since = placed(state.rest, target), placed(state.since, target)
        machine = self.executables.resume(self.seed, self.arrays, rest)
        self._underway = Underway(machine, since)
        at = state.rest.at
        position, gradient = (by_group(target, x, zero=True) if x else () for x in (at.position, at.gradient))
        self._draws = np.asarray(state.rest.draw, np.int64) - state.thin * state.stored.counts
        if state.in_warm_up:
            self._warm_up(list(position), list(gradient), on_mesh(state.tuners, target))
            return
        if not self.kernel.machine.in_step:
            self._rest_a_tick(in_warm_up=False)
        if self._replays:
            self._latest = Latest(position, gradient, at.log_density)

    def _rest_a_tick(self, in_warm_up: bool = True) -> None:
        """Have what lanes begin with computed where draws compute it: another program may round in another way."""
        self._abandon = True
        order = self._order(np.zeros(self.blocks.num_chains), 1, 1)
        self._abandon = False
        arguments = self.seed, self.arrays, self._tuning, order, self._underway
        if in_warm_up or self.executables.folding.stores_draws:
            self._underway = self.executables.advance(*arguments).underway
        else:
            self._underway = self.executables.fold(*arguments, self.executables.empty(self.arrays)).underway

    @property
    def step_size(self) -> np.ndarray:
        """The step size in use."""
        return np.asarray(self._tuning.step_size)

    def _use(self, warm_up: WarmUp) -> None:
        """Take over the tuning that warm-up asks for. A metric is placed on the devices once, not in every round."""
        tuning, self._abandon = warm_up.tuning, warm_up.abandon
        metric = getattr(tuning, "metric", None)
        self._new_metric = metric is not getattr(self, "_metric", None)
        if metric is not None:
            if self._new_metric:
                self._metric = metric
                layout = shardings(self.blocks.target.mesh, self.blocks.tuning_specs(metric))
                self._placed_metric = jax.tree.map(to_devices, metric, layout)
            tuning = tuning._replace(metric=self._placed_metric)
        self._tuning = jax.tree.map(lambda leaf: leaf if isinstance(leaf, Array) else np.asarray(leaf), tuning)

    def _round(self, warm_up: WarmUp) -> Batch:
        """The ticks of one round of warm-up. How they are cut into blocks changes nothing: no chain's slots fill up."""
        batches, ticks = [], warm_up.ticks
        while ticks:
            now = min(ticks, self.blocks.slots, self.executables.pace.ticks)
            _, block = self._advance(np.full(self.blocks.num_chains, self.blocks.slots), now, thin=1)
            batches.append(self._batch(block))
            self._draws += block.count
            self.warmup = self._worked(self.warmup, now, block)
            ticks -= now
        if len(batches) == 1:
            return batches[0]
        together = jax.tree.map(lambda *parts: np.concatenate(parts), *batches)
        order = np.argsort(together.chain, kind="stable")
        return jax.tree.map(lambda part: part[order], together)

    def _move(self, moves: list[Move]) -> None:
        """Put chains where others are."""
        sources = np.arange(self.blocks.num_chains)
        for move in moves:
            sources[move.chain] = move.beside
        self._put_beside(sources)
        self.moves += moves

    def _put_beside(self, sources: np.ndarray) -> None:
        """Have each chain go on where another is."""
        machine = self.blocks.machine.moved(self._underway.machine, lambda leaf, axis: _taken(leaf, sources, axis))
        self._underway = self._underway._replace(machine=machine)

    def _block(self, goal: np.ndarray, thin: int) -> tuple[dict[str, Array], Any, HostBlock]:
        """One block of sampling: values of the variables, states of reducers if there are any, and what was drawn."""
        slots, ticks = self.blocks.slots, self.executables.pace.ticks
        if goal.max() > slots:
            ticks = min(ticks, math.ceil(FULLNESS * slots * thin * self._mean_steps))
        advanced, block = self._advance(np.minimum(goal, slots), ticks, thin)
        values, states = self.executables.constrain(self.arrays, advanced.drawn.rows), None
        if self.executables.reduce is not None:
            states = self.executables.reduce(self.arrays, advanced.drawn.rows, advanced.drawn.count)
            states = jax.tree.map(to_host, states)  # an interrupt here loses the block, and not a part of it
        self.sampling = self._worked(self.sampling, int(to_host(advanced.ticks).max()), block)
        if block.count.any() and not self.kernel.machine.in_step:
            self._mean_steps = float(block.stats["num_steps"][block.filled].mean()) / thin
        return values, states, block

    def _advance(self, draws: np.ndarray, ticks: int, thin: int) -> tuple[Any, HostBlock]:
        order, began = self._order(draws, ticks, thin), time.perf_counter()
        if self._abandon and not self.kernel.machine.in_step:
            self._draws += 1  # what is abandoned has used its number
        advanced = self.executables.advance(self.seed, self.arrays, self._tuning, order, self._underway)
        self._underway, self._abandon = advanced.underway, False
        block = fetch_block(self.blocks, advanced)
        self.executables.pace.learn(int(to_host(advanced.ticks).max()), time.perf_counter() - began)
        return advanced, block

    def _order(self, draws: np.ndarray, ticks: int, thin: int) -> Order:
        order = order_of(draws, ticks, thin, self._abandon)
        if jax.process_count() == 1:
            return order
        return order._replace(
            draws=to_devices(order.draws, NamedSharding(self.blocks.target.mesh, PartitionSpec(CHAIN)))
        )

    def _batch(self, block: HostBlock) -> Batch:
        filled, layout = block.filled.T, self.blocks.row_layout

        # chain by chain, so that the order does not depend on the devices
        def chosen(values: Any) -> np.ndarray:
            return np.swapaxes(values, 0, 1)[filled]

        vectors = [
            [chosen(part).reshape(filled.sum(), math.prod(part.shape[2:])) for part in layout.vectors(block.rows, part)]
            for part in range(layout.parts)
        ]
        position, gradient = (*vectors, [])[:2]
        stats = {name: chosen(values) for name, values in block.stats.items()}
        return Batch(position, gradient, stats, np.nonzero(filled)[0])

    def _worked(self, work: Work, ticks: int, block: HostBlock) -> Work:
        evaluations = int(block.stats["num_steps"][block.filled].sum(dtype=np.int64))
        return Work(work.ticks + ticks, work.evaluations + evaluations)

    def _show(
        self, phase: str, done: int, total: int, acceptance: np.ndarray, divergences: int, rate: float = 0.0
    ) -> None:
        if acceptance.size:  # in a short block no draw may have ended
            self._acceptance = float(np.mean(acceptance))
        report = Report(phase, done, total, self.blocks.num_chains, self._acceptance, divergences, rate, self.so_far)
        for look in self._on_block:
            look(report)
        self.interrupts.agree()


def _taken(leaf: Array, sources: np.ndarray, axis: int) -> Array:
    """Entries of an array in another order, laid out as before. It is small, and rarely done: on the host."""
    return to_devices(np.take(to_host(leaf), sources, axis), leaf.sharding)
