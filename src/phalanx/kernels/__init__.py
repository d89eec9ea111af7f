"""Markov kernels, one algorithm per file, and the parts of a kernel or a tuner of your own: `phx.kernels`.

In: the log density of a device's lanes, keys and hyperparameters. Out: `Kernel`s, which `phx.mcmc` compiles. Read
`protocol/kernel.py` first, then `rwmh.py`, the shortest algorithm.

A function that makes draws returns a `Point` and an `Info`; `decide` makes both for a Metropolis decision, and
`from_draw` turns the function into a `Kernel`. A `Machine` moves lanes whose draws take different times, from one
`LaneState` to the next. A `Tuner` learns from `Sums` over a round's draws, or a `Sample` of a window's draws, at a
`Stage` of warm-up: `Metric`, `TrajectoryLength`, `StepSize`, or your own.
"""

from phalanx.adaptation.metric import Metric
from phalanx.adaptation.step_size import StepSize
from phalanx.adaptation.trajectory import TrajectoryLength
from phalanx.adaptation.tuner import Sample, Stage, Sums, Tuner
from phalanx.kernels.integrators.acceptance import decide
from phalanx.kernels.protocol.kernel import Info, Kernel, LaneState, Machine, Point
from phalanx.kernels.protocol.whole_draw import from_draw
from phalanx.mesh.position import Vector

__all__ = [
    "Info",
    "Kernel",
    "LaneState",
    "Machine",
    "Metric",
    "Point",
    "Sample",
    "Stage",
    "StepSize",
    "Sums",
    "TrajectoryLength",
    "Tuner",
    "Vector",
    "decide",
    "from_draw",
]
