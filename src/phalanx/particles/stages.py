"""Loop of sequential Monte Carlo: choose the next temperature, weigh and resample particles, move them.

The hyperparameters of the kernel are learned from all particles together: a metric from the particles as a temperature
begins, before they move; a step size, or a length of trajectories, from the moves, round by round. Both continue from
temperature to temperature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax import Array

from phalanx.adaptation.tuner import Sample, Stage, Sums, Tuner
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.mesh.interrupts import Interrupts
from phalanx.mesh.processes import to_host
from phalanx.mesh.specs import PyTree
from phalanx.mesh.total import Total
from phalanx.particles.first_particles import check_likelihoods, from_prior
from phalanx.particles.pool import Pool, Weighted, effective_number, first_temperature, resampled
from phalanx.particles.programs import Position, Programs

if TYPE_CHECKING:
    from jaxtyping import Float, Int

MOST_MOVES = 200
"""The most draws of the kernel for each particle at a temperature, if their number is chosen."""

MORE = 0.5
"""Draws of the next round, as a fraction of those before."""

SATURATED, NOISE = 1.1, 4.0
"""Factor by which the squared distance from a particle's start may change while its moves grow by a half, and number of
standard errors of noise that are added: the correlation with the start is then about 0.14 at most. A distance falls
where trajectories lead back."""

MOST_SAMPLED = 2**20
"""The most numbers copied to the host for a metric; of more particles, some are left out."""

RESAMPLING = 0x736D63
"""Distinguishes the random numbers of resampling."""


WINDOW = 2
"""Number of the window in which a warm-up has learned a metric from draws, as at every temperature."""


class TuningState(NamedTuple):
    """State of each tuner, and the number of temperatures so far; None before the first."""

    states: tuple[Any, ...] | None = None
    temperatures: int = 0


class TemperatureTuners:
    """Tuners of a kernel, on the schedule of temperatures instead of that of a warm-up.

    Args:
        kernel: the kernel with its initial hyperparameters.
    """

    def __init__(self, kernel: Kernel):
        self._tuners = kernel.tuners
        self._first = kernel.tuning

    @property
    def samples(self) -> bool:
        """True if a tuner learns from the particles themselves, besides their moments."""
        return any(tuner.learns_from == "draws" for tuner in self._tuners)

    @property
    def every_draw(self) -> bool:
        """True if a tuner learns from each draw before the next."""
        return any(tuner.every_draw for tuner in self._tuners)

    def at_temperature(self, state: TuningState, beginning: Sums, sample: Sample | None) -> TuningState:
        """Return the state as a temperature begins, given moments of particles and their gradients, and a sample."""
        stage = self._stage(state)
        states = state.states
        if states is None:
            states = tuple(tuner.init(self._first, beginning, stage) for tuner in self._tuners)
        tuner_states = []
        for tuner, tuner_state in zip(self._tuners, states, strict=True):
            if _learns_from_particles(tuner):
                tuner_state = tuner.next_window(tuner.update(tuner_state, beginning, self._first, stage), sample, stage)
            elif state.states is not None:
                tuner_state = tuner.next_window(tuner_state, None, stage)
            tuner_states.append(tuner_state)
        return TuningState(tuple(tuner_states), state.temperatures + 1)

    def after(self, state: TuningState, sums: Sums, tuning: PyTree) -> TuningState:
        """Return the state after a round of moves with these hyperparameters."""
        searching = self.searches(state)
        stage = self._stage(state)
        states = []
        for tuner, tuner_state in self._known(state):
            waits = _learns_from_particles(tuner) or (searching and not tuner.searches(tuner_state))
            states.append(tuner_state if waits else tuner.update(tuner_state, sums, tuning, stage))
        return state._replace(states=tuple(states))

    def searches(self, state: TuningState) -> bool:
        """Return whether the next round is a single short move, from which only tuners that search learn."""
        return any(tuner.searches(tuner_state) for tuner, tuner_state in self._known(state))

    def hyperparameters(self, state: TuningState) -> PyTree:
        """Return the hyperparameters of the next round."""
        tuning = self._first
        stage = self._stage(state)
        for tuner, tuner_state in self._known(state):
            tuning = tuner.apply(tuner_state, tuning, stage)
        return tuning

    def _known(self, state: TuningState) -> list[tuple[Tuner, Any]]:
        return list(zip(self._tuners, state.states or (), strict=True))

    def _stage(self, state: TuningState) -> Stage:
        """Return the stage of a warm-up that never ends, and in which no scale is renewed."""
        window = state.temperatures + WINDOW
        return Stage(window, window + 2, window + 3, of_warm_up=False)


def _learns_from_particles(tuner: Tuner) -> bool:
    return tuner.learns_from != "statistics"


@dataclass(frozen=True)
class StageReport:
    """Progress of a run of particles.

    Attributes:
        phase: "tempering".
        done, total: percent of the way to the posterior, and 100.
        temperature: the power of the likelihood.
        ess: effective particles before resampling.
        acceptance_rate: mean over the moves at this temperature; NaN for a kernel that accepts every proposal.
        log_evidence: at this temperature.
        ancestors: effective number of ancestors, draws from the prior that the particles descend from.
        moves: draws of the kernel for each particle at this temperature.
    """

    phase: str
    done: int
    total: int
    temperature: float
    ess: float
    acceptance_rate: float
    log_evidence: float
    ancestors: float
    moves: int

    @property
    def what(self) -> str:
        """Name of the iterations."""
        return "percent"

    def __str__(self) -> str:
        return f"temperature {self.temperature:.3g}, log evidence {self.log_evidence:,.1f}"


@dataclass
class Stages:
    """Run of particles from the prior to the posterior.

    Args:
        programs: the compiled programs.
        tuning: tuners of the kernel.
        pool: the empty pool.
        seed: seed of the run.
        arrays: the data on the devices.
        num_moves: draws of the kernel at each temperature; None to choose.
        target_ess: effective particles, as a fraction.
        callbacks: functions called with a report at each temperature.
    """

    programs: Programs
    tuning: TemperatureTuners
    pool: Pool
    seed: int
    arrays: tuple[Array, ...]
    num_moves: int | None
    target_ess: float
    callbacks: Sequence[Callable[[StageReport], Any]]
    interrupts: Interrupts = field(default_factory=Interrupts)
    record: dict[str, list[float]] = field(default_factory=dict)
    positions: tuple[Position, ...] = ()
    evaluations: int = 0
    undefined: int = 0
    """Draws from the prior whose log likelihood is not a number; they have weight zero."""
    gap: float = 0.0
    """Change of the log evidence, in nats, that the drift of the log likelihood in the moves suggests."""
    gap_influence: Any = 0.0
    """Influence of each ancestor on the gap."""
    weighted: Weighted | None = None
    log_density: Any = None
    """Log density of the particles on the unconstrained scale, at their temperature."""
    _state: TuningState = field(default_factory=TuningState)
    _drawn: int = 1

    def begin(self) -> None:
        """Draw the particles from the prior.

        Raises:
            ValueError: when draws have no position, or the likelihood is zero at each.
        """
        number = self.programs.blocks.num_chains
        position = from_prior(self.programs, self.at(0.0), self.seed)
        log_likelihood = self._log_likelihood(position)
        self.undefined = int(np.isnan(log_likelihood).sum())
        log_likelihood = np.where(np.isnan(log_likelihood), -np.inf, log_likelihood)
        check_likelihoods(log_likelihood, self.programs, self.arrays)
        self.pool = self.pool.with_particles(first_temperature(number), log_likelihood, np.arange(number))
        self.positions = (position,)
        self.evaluations += number

    def run(self) -> None:
        """Temper the particles to the posterior."""
        while not self.is_done:
            self._next()

    @property
    def is_done(self) -> bool:
        """True if the particles are of the posterior."""
        return bool(self.pool.temperatures) and self.pool.temperatures[-1].power >= 1.0

    def interrupted(self) -> None:
        """Raise the interrupt again if the particles are not of the posterior yet."""
        if not self.is_done:
            raise

    def _next(self) -> None:
        number = self.programs.blocks.num_chains
        before = self.pool.temperatures[-1].power
        weighted_particles = self.pool.next(self.target_ess)
        stage = len(self.record.get("temperature", ())) + 1
        uniform = np.random.default_rng([self.seed, RESAMPLING, stage]).random()
        parents = resampled(weighted_particles.weights, number, uniform)
        ancestors = np.concatenate(self.pool.ancestors)[parents]
        position = tuple(np.concatenate(parts, -1)[:, parents] for parts in zip(*self.positions, strict=True))
        moved_position, log_likelihood, moves = self._moved(position, weighted_particles.at.power)
        self._note_drift(weighted_particles, before, log_likelihood, ancestors)
        self.pool = self.pool.with_particles(weighted_particles.at, log_likelihood, ancestors)
        self.positions = (*self.positions, moved_position) if self.pool.keeps_all else (moved_position,)
        self.weighted = weighted_particles
        entries = {
            "temperature": weighted_particles.at.power,
            "ess": weighted_particles.ess,
            "log_evidence": weighted_particles.at.log_evidence,
            "ancestors": effective_number(weighted_particles.of_ancestors),
            **moves,
        }
        for name, value in entries.items():
            self.record.setdefault(name, []).append(value)
        percent = _percent(weighted_particles.at.power, self.record["temperature"][0])
        report = StageReport(
            "tempering",
            percent,
            100,
            weighted_particles.at.power,
            weighted_particles.ess,
            moves["acceptance_rate"],
            weighted_particles.at.log_evidence,
            entries["ancestors"],
            int(moves["moves"]),
        )
        for callback in self.callbacks:
            callback(report)

    # -- moves -------------------------------------------------------------------------------------------------------

    def _moved(
        self, position: Position, power: float
    ) -> tuple[Position, Float[np.ndarray, "particle"], dict[str, float]]:
        """Return the particles after moves at a temperature, their log likelihoods, and numbers for the record."""
        programs = self.programs
        tuning = self.tuning
        arrays = self.at(power)
        settled_particles = programs.settled(self.seed, arrays, position, self._drawn)
        number = programs.blocks.num_chains
        chains = settled_particles.chains
        self.evaluations += number
        learns = programs.blocks.kernel.learns_moments
        beginning = (
            programs.summed(settled_particles.rows, 1) if learns else Sums.nothing(programs.blocks.layout.whole_lengths)
        )
        sample = _sample(position, chains) if tuning.samples and learns else None
        state = tuning.at_temperature(self._state, beginning, sample)
        num_steps = 0
        last_check = 0
        apart = np.zeros(0)
        total = Sums.nothing()
        change = math.inf
        most = self.num_moves or MOST_MOVES
        while True:
            hyperparameters = tuning.hyperparameters(state)
            searching = tuning.searches(state)
            one = searching or tuning.every_draw
            length = 1 if one else min(_round_after(num_steps), programs.blocks.slots, most - num_steps)
            chains, sums = programs.moved(self.seed, arrays, chains, hyperparameters, length, self.interrupts.agree)
            self._drawn += length
            state = tuning.after(state, sums, hyperparameters)
            self.evaluations += int(sums.stats["num_steps"])
            if searching:
                continue
            total = sums if not num_steps else total.merge(sums)
            num_steps = num_steps + length
            if num_steps < last_check + _round_after(last_check) and num_steps < most:
                continue
            position_now = tuple(map(to_host, chains.lanes.at.position.parts))
            before = apart
            apart = _squared_distances(position_now, position)
            if last_check:
                change = _change(before, apart)
            last_check = num_steps
            if num_steps >= most or (self.num_moves is None and change <= SATURATED + NOISE / math.sqrt(number)):
                break
        self._state = state
        self.log_density = _in_double(chains.lanes.at.log_density)
        numbers = {
            "moves": float(num_steps),
            "acceptance_rate": total.mean("acceptance_rate"),
            "change": change,
            "divergences": total.stats["diverging"],
            "step_size": float(getattr(hyperparameters, "step_size", math.nan)),
        }
        return position_now, self._log_likelihood(position_now), numbers

    def _log_likelihood(self, position: Position) -> Float[np.ndarray, "particle"]:
        """Return the log likelihood of every particle, in float64."""
        return _in_double(self.programs.likelihood(self.at(1.0), self.programs.placed(position)))

    def at(self, power: float) -> tuple[Any, ...]:
        """Return the data on the devices, and a power of the likelihood."""
        return self.programs.tempered(self.arrays, power)

    def _note_drift(
        self,
        weighted_particles: Weighted,
        before: float,
        log_likelihood: Float[np.ndarray, "particle"],
        ancestors: Int[np.ndarray, "_"],
    ) -> None:
        """Note the change of the mean log likelihood in the moves, which leave it as it is in equilibrium.

        The evidence is an integral of that mean over temperatures, so that half of the change counts in each interval.
        """
        half = 0.5 * (weighted_particles.at.power - before)
        number = len(log_likelihood)
        mean = float(log_likelihood.mean())
        influence = np.bincount(ancestors, log_likelihood - mean, number) / number - weighted_particles.mean_influence
        self.gap += half * (mean - weighted_particles.mean_log_likelihood)
        self.gap_influence = self.gap_influence + half * influence


def _sample(position: Position, chains: Any) -> Sample:
    """Return particles at rest as a sample for a metric; of many, some are left out."""
    number = position[0].shape[1]
    every = max(1, math.ceil(position[0].size / MOST_SAMPLED))
    at = chains.lanes.at
    gradient = to_host(at.gradient.parts[0]).T[::every]
    log_density = _in_double(at.log_density)
    return Sample((position[0].T[::every],), (gradient,), log_density[::every], np.arange(number)[::every])


def _in_double(total: Total) -> Float[np.ndarray, "particle"]:
    return np.asarray(Total(to_host(total.coarse), to_host(total.fine)).in_double())


def _round_after(num_steps: int) -> int:
    return max(1, math.ceil(MORE * num_steps))


def _squared_distances(a: Position, b: Position) -> Float[np.ndarray, "coordinate"]:
    """Return the mean squared distance of particles in each coordinate."""
    return np.concatenate([np.square(x.astype(np.float64) - y).mean(1) for x, y in zip(a, b, strict=True)])


def _change(before: Float[np.ndarray, "coordinate"], after: Float[np.ndarray, "coordinate"]) -> float:
    """Return the largest factor by which a squared distance changes; coordinates of padded rows do not move."""
    moving = (before > 0) | (after > 0)
    if not moving.any():
        return math.inf
    with np.errstate(divide="ignore"):
        return float(np.exp(np.max(np.abs(np.log(after[moving] / before[moving])))))


def _percent(power: float, first: float) -> int:
    """Return the way from the first temperature to one, in percent."""
    return 100 if power >= 1.0 else round(100 * (1 - math.log(power) / math.log(first)))
