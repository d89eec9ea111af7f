"""Tuning of kernels on the schedule of temperatures."""

from __future__ import annotations

import pytest

import phalanx as phx
from phalanx.adaptation.tuner import Sums
from phalanx.particles.stages import TemperatureTuners, TuningState


@pytest.mark.parametrize("kernel", [phx.chees(), phx.mams(), phx.mams(trajectory_length=1.0)])
def test_moves_leave_the_distribution_of_a_temperature_invariant(kernel):
    """Trajectories that climb without a way back, which warm-up accepts, would not."""
    tuners = TemperatureTuners(kernel)
    state = tuners.at_temperature(TuningState(), Sums.nothing((2,)), None)
    tuning = tuners.hyperparameters(state)
    assert tuning.learns and not tuning.in_warm_up
