"""Protocol of a kernel: how lanes move, and what warm-up may learn."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol

from jax import Array

from phalanx.adaptation.tuner import Tuner
from phalanx.density.target import Target
from phalanx.kernels.metric.given_metric import GivenMetric, metric_on
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.keys import Keys
from phalanx.mesh.position import Vector
from phalanx.mesh.total import Total


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
    compared by value: equal ones compile to one program. `phalanx.kernels.protocol.whole_draw` makes one of a function.
    Derive from this class to have the defaults.

    Attributes:
        in_lock_step: whether a tick is a whole draw of every lane.
        uses_gradient: whether a step's evaluations are gradients.
        knows_mesh: whether it may move variables spread over devices; False for algorithms written for one device.
    """

    in_lock_step: ClassVar[bool] = True
    uses_gradient: ClassVar[bool] = True
    knows_mesh: ClassVar[bool] = True

    @property
    def least_coordinates(self) -> int:
        """The fewest that a position must have."""
        return 1

    def rest(self, now: LaneState, keys: Keys, target: LaneTarget) -> Any:
        """Return what the machine keeps of its own when lanes are at rest, about to begin their draws.

        By default it keeps nothing from draw to draw but where the lanes are.
        """
        return ()

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

    Two kernels with equal machines and tuners compile to one program: hyperparameters are arguments, in `tuning`.

    Attributes:
        name: how the user wrote it.
        machine: how it moves the lanes.
        tuning: hyperparameters to begin with, a NamedTuple of arrays.
        tuners: what warm-up learns, in the order in which hyperparameters are set: `StepSize`, `Metric`,
            `TrajectoryLength`, and tuners of your own.
        tuned_steps: warm-up iterations in which anything is tuned; None means all of them.
        statistics: fields of the info that tells of a draw.
        relocates: whether warm-up moves chains that have settled where the posterior has next to no mass.
        batch_size: rows that an evaluation sees, whose estimates are all that is known of the log density of a draw;
            None where it sees all.
        bias: why the draws are not quite of the target, in a sentence, for a kernel that does not leave it invariant.
    """

    name: str = field(compare=False)
    machine: Machine
    tuning: Any = field(compare=False)
    tuners: tuple[Tuner, ...] = ()
    tuned_steps: int | None = field(default=None, compare=False)
    statistics: tuple[str, ...] = Info._fields
    relocates: bool = field(default=True, compare=False)
    batch_size: int | None = None
    bias: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        known = isinstance(self.tuners, tuple) and all(isinstance(tuner, Tuner) for tuner in self.tuners)
        if not known or any(isinstance(tuner, type) or not isinstance(tuner, Hashable) for tuner in self.tuners):
            raise TypeError(
                f"{self.name}: tuners must be a tuple of tuners that have a hash, as frozen dataclasses have, such as "
                f"(phx.kernels.StepSize(0.8),); got {self.tuners!r}."
            )

    @property
    def learns_moments(self) -> bool:
        """Whether a tuner learns from moments of positions and gradients: of a kernel without gradients none can."""
        return self.machine.uses_gradient and any(tuner.learns_from != "statistics" for tuner in self.tuners)

    def on(self, target: Target) -> Kernel:
        """The same with a metric that the user has given as it is laid out for this target."""
        given = getattr(self.tuning, "metric", None)
        if not isinstance(given, GivenMetric):
            return self
        return replace(self, tuning=self.tuning._replace(metric=metric_on(given, target)))
