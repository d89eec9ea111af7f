"""`phx.fit(..., each=)`: divide the data, compile one program for all data sets, learn, and return the fits."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax import Array

from phalanx.density.given_names import GivenNames
from phalanx.language.tracing import Program
from phalanx.learning.compiled import Compiler
from phalanx.learning.loop import Loop
from phalanx.mesh.devices import make_mesh
from phalanx.mesh.processes import to_host
from phalanx.posterior.each.stored_sets import blanked
from phalanx.posterior.record import RunRecord, Timing
from phalanx.run.each.data_sets import Each
from phalanx.run.each.model_on_sets import ModelOnSets
from phalanx.run.progress.display import waiting
from phalanx.variational import checks
from phalanx.variational.compiled_fit import run_to_end
from phalanx.variational.data_checks import DataChecks
from phalanx.variational.drawing import MOST_DRAWS
from phalanx.variational.each.fits import Fits, chosen_names
from phalanx.variational.each.learning import LearningOfSets, SetsProgress
from phalanx.variational.each.programs import LanePrograms
from phalanx.variational.guides.guide_and_model import Pair, alignment_of
from phalanx.variational.methods.optimizer import steps_of
from phalanx.variational.methods.settling import Settling
from phalanx.variational.methods.step import PATIENCE
from phalanx.variational.methods.stochastic import why_unsettled
from phalanx.variational.monitoring.recording import names_for, record_of
from phalanx.variational.options import FitOptions
from phalanx.variational.result import Fit
from phalanx.variational.start import check_misfits, init_of, pair_of
from phalanx.variational.unbounded_scales import check_bounded

NUMBERS = 2**24
"""Most numbers in draws that are made at once, over all data sets."""


@dataclass(frozen=True)
class CompiledSets:
    """Fits of many data sets at their first parameters, whose programs are compiled.

    Attributes:
        programs: the programs over lanes.
        method: the steps of all data sets.
        loop: the loop over the blocks of the method, at its first state.
        failed: reasons of data sets that cannot be fitted, by number.
        falls: whether the rate falls to zero over the steps.
        notices: sentences to show before the fits.
    """

    programs: LanePrograms
    method: LearningOfSets
    loop: Loop[SetsProgress]
    failed: Mapping[int, str]
    falls: bool
    notices: tuple[str, ...]

    @classmethod
    def of(cls, pair: Pair, on_sets: ModelOnSets, options: FitOptions) -> CompiledSets:
        """Check the values of the data, compile, and compute the first parameters.

        Raises:
            ValueError: when no data set can be fitted.
        """
        count = on_sets.sets.count
        compiler = Compiler(options.matmul_precision)
        programs = LanePrograms(pair, on_sets, compiler)
        data_checks = DataChecks(pair, compiler)
        seeds = np.uint32(options.seed) + np.arange(count, dtype=np.uint32)
        lanes = programs.lanes
        arrays = programs.arrays(lanes)
        with waiting(options.progress, "compiling"):
            failures = _invalid(programs, data_checks, arrays)
            free, *flags = programs.begun(seeds[lanes], arrays, init_of(options.init, pair))
            failures = check_misfits(*flags, sets=count) | failures
            shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), free)
            steps, rate, falls = steps_of(
                pair, options.objective, options.optimizer, options.num_particles, options.num_steps, shapes
            )
            method = LearningOfSets(
                programs, steps, seeds, rate, Settling.at_first_window(options.num_steps, options.stops)
            )
            loop = Loop(method, method.init_progress(dict(free), lanes, arrays, frozenset(failures)))
        notices = (*on_sets.notices, *data_checks.unseen(pair.problem.arguments))
        return cls(programs, method, loop, failures, falls, notices)

    def learn(self, options: FitOptions) -> tuple[SetsProgress, dict[int, str]]:
        """Run the method; return what it has learned, and why data sets have failed, by number.

        Raises:
            ValueError: when all data sets have failed.
        """
        loop = self.loop
        count = self.programs.on_sets.sets.count
        run_to_end(loop, self.notices, options)
        sets_progress = self.method.outcome(loop.state)
        reason = f"its loss, or the loss's gradient, was not finite for {PATIENCE} steps, one after the other."
        failures = {**self.failed, **dict.fromkeys(sets_progress.gave_up, reason)}
        if len(failures) == count:
            raise ValueError(
                f"each: none of the {count:,} data sets can be fitted; of the first, {failures[0]} Run phx.fit on it "
                f"alone to see more."
            )
        return sets_progress, failures


def fit_each(model: Program, guide: Any, data: object, each: Each, options: FitOptions) -> Fits:
    """Return the fits of many data sets; see `phx.fit`."""
    began = time.perf_counter()
    _check(options)
    names = GivenNames.of(options.dims, options.coords)
    on_sets = ModelOnSets.of_sets(model, data, each, options.mesh, names, learns=True)
    pair = _pair_on_sets(guide, on_sets, options)
    compiled_sets = CompiledSets.of(pair, on_sets, options)
    learning = time.perf_counter()
    start_time = datetime.now().isoformat(timespec="seconds")
    sets_progress, failures = compiled_sets.learn(options)
    stop = compiled_sets.loop.stopped
    whole = {
        number: why_unsettled(
            sets_progress.settling[number], int(sets_progress.steps[number]), compiled_sets.falls, stop
        )
        for number in range(on_sets.sets.count)
        if number not in failures
    }
    timing = Timing(
        compile=learning - began,
        warmup=0.0,
        sampling=time.perf_counter() - learning,
        gradient_evaluations=int(sets_progress.steps.sum()) * options.num_particles,
        compilations=compiled_sets.programs.compiler.count,
    )
    result = _Result(
        guide,
        sets_progress,
        compiled_sets.programs,
        list(failures),
        whole,
        timing,
        start_time,
        stop is not None,
        options,
    )
    sets = on_sets.sets.names
    return Fits(
        params=result.params,
        elbo=blanked(sets_progress.elbo, result.failed),
        error=blanked(sets_progress.error, result.failed),
        steps=sets_progress.steps,
        sets=sets,
        failed={sets[number]: reason for number, reason in sorted(failures.items())},
        unsettled={sets[number]: why for number, why in whole.items() if why},
        timing=timing,
        record=result.record(pair, options.seed),
        fit_of=result.fit_of,
        draws_of=result.draws_of,
    )


def _pair_on_sets(guide: Any, on_sets: ModelOnSets, options: FitOptions) -> Pair:
    """Return the guide beside the model, with the data of one data set, on one device."""
    alone = make_mesh(devices=on_sets.mesh.devices.flat[:1])
    pair = pair_of(on_sets.model, guide, on_sets.filled, alone, None, None)
    _check_guide(pair, on_sets)
    checks.check_particles(options.num_particles, pair)
    checks.check_learned(pair.learned, pair.guide.name)
    check_bounded(pair)
    checks.check_estimator(options.objective, alignment_of(pair).scored, options.num_particles)
    return pair


@dataclass(frozen=True)
class _Result:
    """Parameters, bounds and draws of all data sets, and the fit of one."""

    guide: Any
    sets_progress: SetsProgress
    programs: LanePrograms
    failed: Sequence[int]
    unsettled: Mapping[int, str]
    timing: Timing
    started: str
    interrupted: bool
    options: FitOptions

    @property
    def on_sets(self) -> ModelOnSets:
        """The model on the data sets."""
        return self.programs.on_sets

    @cached_property
    def _free(self) -> dict[str, Any]:
        """Parameters of the lanes, on the real line."""
        return jax.tree.map(lambda leaf: leaf[self.programs.lanes], self._ends)

    @property
    def _ends(self) -> dict[str, Any]:
        return self.sets_progress.free if self.options.averages else self.sets_progress.last

    @cached_property
    def params(self) -> dict[str, Any]:
        """Parameters by data set."""
        return self._values_of(self._ends)

    @cached_property
    def _last(self) -> dict[str, Any]:
        """Parameters after the last steps, by data set."""
        return self._values_of(self.sets_progress.last)

    def record(self, pair: Pair, seed: int) -> RunRecord:
        """Return the record of a guide beside a model."""
        options = self.options
        return record_of(
            pair,
            options.objective,
            options.num_steps,
            seed,
            self.started,
            self.interrupted,
            names_for(pair.problem, options.dims, options.coords),
            options.matmul_precision,
        )

    def fit_of(self, number: int) -> Fit:
        """Return the fit of one data set, with its own rows alone."""
        data = self.on_sets.sets.one(number, with_padding=False)
        options = self.options
        progress = self.sets_progress
        pair = pair_of(self.on_sets.of_user, self.guide, data, self.programs.pair.problem.mesh, None, None)
        free, params = (jax.tree.map(lambda leaf: leaf[number], of) for of in (self._ends, self.params))
        last = jax.tree.map(lambda leaf: leaf[number], self._last) if options.averages else None
        return Fit(
            params,
            progress.losses(number),
            self.timing,
            self.record(pair, (options.seed + number) % 2**32),
            self.unsettled[number],
            int(progress.steps[number]),
            int(progress.failed[number]),
            free=free,
            pair=pair,
            arrays=pair.problem.place_arrays(),
            last=last,
        )

    def _values_of(self, free: dict[str, Any]) -> dict[str, Any]:
        lanes = jax.tree.map(lambda leaf: leaf[self.programs.lanes], free)
        values = jax.tree.map(to_host, self.programs.values(lanes))
        return jax.tree.map(lambda leaf: blanked(leaf[: self.on_sets.sets.count], self.failed), values)

    def draws_of(self, seed: int, n: int, names: Sequence[str] | None) -> dict[str, np.ndarray]:
        """Return draws from the guides, `(set, draw, ...)`."""
        pair = self.programs.pair
        count = self.on_sets.sets.count
        if not pair.guide.traits.has_draws:
            raise ValueError("sample: these fits are of maximum likelihood, and have values alone: fits.params.")
        values = pair.problem.whole.values
        names = chosen_names(names, list(values), [name for name in values if name not in self.on_sets.by_row])
        if rows := [name for name in names if name in self.on_sets.by_row]:
            raise ValueError(
                f"sample: {rows[0]!r} has an element for each row, and the data sets differ in their numbers of rows. "
                f"Draw it with fits.of(name).sample()."
            )
        lanes = self.programs.lanes
        arrays = self.programs.arrays(lanes)
        seeds = (np.uint32(seed) + np.arange(count, dtype=np.uint32))[lanes]
        each = len(lanes) * sum(max(1, leaf.size) for leaf in jax.tree.leaves(values))
        size = int(max(1, min(MOST_DRAWS, n, NUMBERS // each)))
        parts = []
        for first in range(0, n, size):
            numbers = np.arange(first, first + size, dtype=np.uint32)
            batch = self.programs.draws(self._free, seeds, numbers, arrays).values
            parts.append({name: to_host(batch[name])[:count, : n - first] for name in names})
        return {name: blanked(np.concatenate([part[name] for part in parts], axis=1), self.failed) for name in names}


def _invalid(programs: LanePrograms, checks: DataChecks, arrays: Sequence[Array]) -> dict[int, str]:
    """Return the data sets with a value out of range, with the reason.

    Raises:
        ValueError: when an index of a data set is out of range.
    """
    sets = programs.on_sets.sets
    problems = {}
    for number in map(int, np.flatnonzero(programs.invalid(checks, arrays)[: sets.count])):
        arguments = programs.pair.problem.arguments.with_arrays(programs.on_sets.arrays_of(number))
        try:
            checks.unseen(arguments)
        except ValueError as error:
            raise ValueError(f"each: data set {sets.text_of([number])}: {error}") from None
        try:
            checks.check_now(arguments)
        except ValueError as error:
            problems[number] = str(error)
    return problems


def _check(options: FitOptions) -> None:
    """Raise for arguments that fits of many data sets do not take."""
    for name in ("training", "checkpoint", "batch_size", "num_rows", "missing"):
        if getattr(options, name) is not None:
            raise ValueError(
                f"{name}: fits with each= do not take {name}=. Leave it out; or run phx.fit on one data set after the "
                f"other."
            )
    if isinstance(options.optimizer, str):
        raise ValueError(
            f"optimizer: with each= expected a rate or one of optax's optimisers; got {options.optimizer!r}. Leave it "
            f"out; or run phx.fit on one data set after the other."
        )
    if options.num_steps == 0:
        raise ValueError("num_steps: with each= expected one step or more; got 0.")
    if options.init is not None and not isinstance(options.init, Mapping):
        raise ValueError(
            f"init: with each= expected a dict of values by parameter or variable, with which all data sets begin; got "
            f"{type(options.init).__name__}."
        )


def _check_guide(pair: Pair, on_sets: ModelOnSets) -> None:
    """Raise for a guide without steps, and for one that takes rows which may only fill a data set up."""
    sets = on_sets.sets
    arguments_of_guide = (
        set() if pair.program_guide is None or sets.rows is None else pair.program_guide.asked(on_sets.filled).keys()
    )
    if rows := sorted(arguments_of_guide & sets.of_rows):
        raise ValueError(
            f"guide: {pair.guide.name} takes {', '.join(map(repr, rows))}, and the data sets differ in numbers of "
            f"rows: it would see rows that only fill shorter ones up. Leave them out of its arguments if it does not "
            f"read them; take another guide, such as phx.guides.mean_field(); or give data sets of equal size."
        )
    if pair.guide.traits.is_solved:
        raise ValueError(
            f"guide: {pair.guide.name} is found without steps, and with each= guides are learned by steps. Take "
            f"phx.guides.mean_field() or full_rank(); or run phx.fit on one data set after the other."
        )
