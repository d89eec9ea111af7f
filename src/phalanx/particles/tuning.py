"""Hyperparameters of a kernel that moves particles, learned from all particles together.

A metric is learned from the particles as a temperature begins, before they move; a step size, or a length of
trajectories, from the moves, round by round. Both continue from temperature to temperature.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from phalanx.adaptation.tuner import Sample, Stage, Sums, Tuner
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.mesh.specs import PyTree

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
        self._tuners, self._first = kernel.tuners, kernel.tuning

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
        stage, states = self._stage(state), state.states
        if states is None:
            states = tuple(tuner.init(self._first, beginning, stage) for tuner in self._tuners)
        learned = []
        for tuner, known in zip(self._tuners, states, strict=True):
            if _learns_from_particles(tuner):
                known = tuner.next_window(tuner.update(known, beginning, self._first, stage), sample, stage)
            elif state.states is not None:
                known = tuner.next_window(known, None, stage)
            learned.append(known)
        return TuningState(tuple(learned), state.temperatures + 1)

    def after(self, state: TuningState, sums: Sums, tuning: PyTree) -> TuningState:
        """Return the state after a round of moves with these hyperparameters."""
        searching, stage, learned = self.searches(state), self._stage(state), []
        for tuner, known in self._known(state):
            waits = _learns_from_particles(tuner) or (searching and not tuner.searches(known))
            learned.append(known if waits else tuner.update(known, sums, tuning, stage))
        return state._replace(states=tuple(learned))

    def searches(self, state: TuningState) -> bool:
        """Return whether the next round is a single short move, from which only tuners that search learn."""
        return any(tuner.searches(known) for tuner, known in self._known(state))

    def hyperparameters(self, state: TuningState) -> PyTree:
        """Return the hyperparameters of the next round."""
        tuning, stage = self._first, self._stage(state)
        for tuner, known in self._known(state):
            tuning = tuner.apply(known, tuning, stage)
        return tuning

    def _known(self, state: TuningState) -> list[tuple[Tuner, Any]]:
        return list(zip(self._tuners, state.states or (), strict=True))

    def _stage(self, state: TuningState) -> Stage:
        """Return the stage of a warm-up that never ends, and in which no scale is renewed."""
        window = state.temperatures + WINDOW
        return Stage(window, window + 2, window + 3)


def _learns_from_particles(tuner: Tuner) -> bool:
    return tuner.learns_from != "statistics"
