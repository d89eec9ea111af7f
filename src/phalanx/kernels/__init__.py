"""Markov kernels, one algorithm per file, and the parts to write a kernel or a tuner of your own: `phx.kernels`.

A function that makes draws returns a `Point` and an `Info`; `decide` makes both for a Metropolis decision, and
`from_draw` makes a `Kernel` of the function. A `Machine` moves lanes whose draws take different times, from one
`LaneState` to the next. A kernel lists its tuners: `Metric`, `TrajectoryLength`, `StepSize`, or any other `Tuner`,
which learns from `Sums` over the draws of a round, or a `Sample` of a window's, at some `Stage` of warm-up.
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
    "Info", "Kernel", "LaneState", "Machine", "Metric", "Point", "Sample", "Stage", "StepSize", "Sums",
    "TrajectoryLength", "Tuner", "Vector", "decide", "from_draw",
]  # fmt: skip
