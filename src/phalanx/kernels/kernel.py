"""What a kernel is: how lanes move, and what warm-up may learn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol

from jax import Array

from phalanx.kernels.given_metric import GivenMetric, metric_on
from phalanx.kernels.lane_target import LaneTarget
from phalanx.kernels.vector import Vector
from phalanx.mesh.keys import Keys
from phalanx.mesh.total import Total
from phalanx.programs.target import Target


class Point(NamedTuple):
    """Where every lane is.

    Attributes:
        position: unconstrained.
        log_density: at the position, `(lanes,)`.
        gradient: of the log density; without parts for a kernel that uses none.
    """

    position: Vector
    log_density: Total
    gradient: Vector


class Info(NamedTuple):
    """What one draw did, of every lane `(lanes,)`; a scalar is that of all lanes.

    Attributes:
        acceptance_rate: probability with which the proposal was accepted, averaged where there were several.
        diverging: whether the integration broke down: an energy or a log density that is not finite, or an
            energy off by more than 1,000.
        num_steps: evaluations of the log density (and of its gradient, where the kernel uses it).
        energy: the Hamiltonian at the draw; minus the log density for kernels without momentum.
    """

    acceptance_rate: Array
    diverging: Array
    num_steps: Array
    energy: Total | Array


class LaneState(NamedTuple):
    """Where the lanes of a device are between ticks; every array has lanes last.

    Attributes:
        draw: number of the draw under way, `(lanes,)`.
        at: the last draw, where that one begins.
        own: what the machine keeps besides, as it likes: vectors as `Vector`, whatever else as arrays `(..., lanes)`.
    """

    draw: Array
    at: Point
    own: Any


class Machine(Protocol):
    """How the lanes of a device move, tick by tick. A tick evaluates each lane's gradient once, or makes whole draws.

    What a lane draws must depend on its own position and keys alone, not on where other lanes are. Machines are
    compared by value: equal ones compile to one program. `phalanx.kernels.lock_step` makes one of a function.

    Attributes:
        in_lock_step: whether a tick is a whole draw of every lane.
    """

    in_lock_step: ClassVar[bool]

    def rest(self, now: LaneState, keys: Keys, target: LaneTarget) -> Any:
        """What the machine keeps of its own when lanes are at rest, about to begin their draws."""
        ...

    def tick(
        self, now: LaneState, active: Array, keys: Keys, target: LaneTarget, tuning: Any
    ) -> tuple[LaneState, Array, Any]:
        """Move all lanes on.

        Args:
            now: where the lanes are. The `now.at` of lanes at rest may have changed: chains are put elsewhere.
            active: lanes that may start and end draws, `(lanes,)`; the others are at rest, and stay so.
            keys: the lanes' keys, of which each draw has one.
            target: the log density.
            tuning: hyperparameters; a metric among them acts on vectors.

        Returns:
            Where the lanes are then, which of them have ended a draw `(lanes,)`, and what it did, an `Info` or more.
        """
        ...


@dataclass(frozen=True)
class Kernel:
    """A Markov kernel that leaves the target invariant, or nearly so, such as `phx.nuts`, `phx.hmc`, `phx.sgld`.

    Two kernels with equal machines compile to one program: hyperparameters are arguments, in `tuning`.

    Attributes:
        name: how the user wrote it.
        machine: how it moves the lanes.
        tuning: hyperparameters to begin with, a NamedTuple of arrays.
        target_acceptance: the acceptance rate that the tuning's `step_size` is tuned to; None where it is given, or
            there is none.
        tuned_steps: warm-up iterations in which anything is tuned; None means all of them.
        metric: what warm-up learns of the posterior's covariance: "diagonal", "dense", "auto", or None for nothing.
            It is put into the tuning's `metric`.
        tunes_trajectory: whether warm-up finds the tuning's `trajectory_length`, from the statistics
            `trajectory_gradient` and `jump_gradient`; it takes two chains at least.
        bound: the hyperparameter that bounds a trajectory: set to 1, it is a single leapfrog, on which a step size is
            first tried. None where a draw is as short as can be.
        early_bound: its largest value before a metric has been learned of draws; None for any.
        uses_gradient: whether a step's evaluations are gradients.
        knows_mesh: whether it may move variables spread over devices; False for algorithms written for one device.
        statistics: fields of the info that tells of a draw.
        least_coordinates: the fewest that a position must have.
        relocates: whether warm-up moves chains that have settled where the posterior has next to no mass.
        batch_size: rows that an evaluation sees, whose estimates are all that is known of the log density of a draw;
            None where it sees all.
        bias: why the draws are not quite of the target, in a sentence, for a kernel that does not leave it invariant.
    """

    name: str = field(compare=False)
    machine: Machine
    tuning: Any = field(compare=False)
    target_acceptance: float | None = None
    tuned_steps: int | None = field(default=None, compare=False)
    metric: str | None = None
    tunes_trajectory: bool = False
    bound: str | None = None
    early_bound: int | None = None
    uses_gradient: bool = True
    knows_mesh: bool = True
    statistics: tuple[str, ...] = Info._fields
    least_coordinates: int = 1
    relocates: bool = field(default=True, compare=False)
    batch_size: int | None = None
    bias: str | None = field(default=None, compare=False)

    @property
    def is_tuned(self) -> bool:
        """Whether warm-up has anything to learn."""
        return self.target_acceptance is not None or self.metric is not None or self.tunes_trajectory

    def on(self, target: Target) -> Kernel:
        """The same with a metric that the user has given as it is laid out for this target."""
        given = getattr(self.tuning, "metric", None)
        if not isinstance(given, GivenMetric):
            return self
        return replace(self, tuning=self.tuning._replace(metric=metric_on(given, target)))
