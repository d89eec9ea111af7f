"""Model FLOP utilisation: a model's own arithmetic as a fraction of the accelerators' peak."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from phalanx.variational.methods.step import FitState, Steps, step_key

PEAKS = {
    "H200": 989e12, "H100": 989e12, "A100": 312e12, "TPU v4": 275e12, "TPU v5 lite": 197e12, "TPU v5e": 197e12,
    "TPU v5p": 459e12, "TPU v6 lite": 918e12, "TPU v6e": 918e12,
}  # fmt: skip
"""Operations per second in dense bfloat16, by a part of the device's kind; from the vendors' data sheets."""


def flops_of_a_step(steps: Steps, state: FitState, seed: np.uint32, arrays: Sequence[Array]) -> float:
    """Return the floating-point operations of one step on all devices together, before XLA's optimisation."""

    def step(state: FitState, seed: Array, arrays: Sequence[Array]) -> tuple[FitState, Array]:
        key = step_key(seed, state.step)
        return steps.one(state, steps.noise(key), steps.pair.problem.step_data(arrays, key), np.float32(1.0))

    counted: Any = jax.jit(step).lower(state, seed, arrays).cost_analysis()
    return float(counted.get("flops", math.nan)) if counted else math.nan


def fraction_of_a_step(steps: Steps, state: FitState, seed: np.uint32, arrays: Sequence[Array]) -> float:
    """Return the seconds of a step at the devices' peak; NaN for a kind of device that `PEAKS` does not list."""
    devices = steps.pair.problem.mesh.devices
    kind = devices.flat[0].device_kind
    peak = next((rate for name, rate in PEAKS.items() if name in kind), None)
    if peak is None:
        return math.nan
    return flops_of_a_step(steps, state, seed, arrays) / (peak * devices.size)
