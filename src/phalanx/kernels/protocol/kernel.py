"""Protocol of a kernel: the machine that moves lanes, its state and statistics, and its tuners."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from jax import Array

from phalanx.adaptation.tuner import Tuner
from phalanx.density.target import Target
from phalanx.kernels.metric.given_metric import GivenMetric, metric_on
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.position import Vector
from phalanx.mesh.random_numbers import Keys
from phalanx.mesh.specs import PyTree
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Bool


class Point(NamedTuple):
    """Position of every lane, and the log density there.

    Attributes:
        position: unconstrained.
        log_density: at the position, `(lanes,)`.
        gradient: of the log density; without parts for a kernel that uses none.

    Example:
        >>> import jax.numpy as jnp
        >>> from phalanx.kernels import Point, Vector
        >>> at = Vector((jnp.zeros((2, 3)),))  # two coordinates, three lanes
        >>> Point(at, jnp.zeros(3), at).position.parts[0].shape
        (2, 3)
    """

    position: Vector
    log_density: Total
    gradient: Vector


class Info(NamedTuple):
    """Statistics of one draw of every lane, `(lanes,)`; a scalar holds for all lanes.

    Attributes:
        acceptance_rate: probability with which the proposal was accepted, averaged where there were several.
        diverging: true if the integration broke down: an energy or a log density that is not finite, or an
            energy error of more than 1,000.
        num_steps: evaluations of the log density (and of its gradient, where the kernel uses it).
        energy: the Hamiltonian at the draw; minus the log density for kernels without momentum.

    Example:
        >>> from phalanx.kernels import Info
        >>> Info._fields
        ('acceptance_rate', 'diverging', 'num_steps', 'energy')
    """

    acceptance_rate: Array
    diverging: Array
    num_steps: Array
    energy: Total | Array


class LaneState(NamedTuple):
    """State of the lanes of a device between ticks; every array has lanes last.

    Attributes:
        draw: number of the draw under way, `(lanes,)`.
        at: the point at which the draw under way begins, which is the draw before; kept until the draw ends, so that it
            can be repeated.
        kernel_state: further state of the machine: vectors as `Vector`, all else as arrays `(..., lanes)`.

    Example:
        >>> import jax.numpy as jnp
        >>> from phalanx.kernels import LaneState, Point, Vector
        >>> at = Point(Vector((jnp.zeros((2, 3)),)), jnp.zeros(3), Vector(()))
        >>> LaneState(jnp.arange(3), at, kernel_state=()).draw + 1
        Array([1, 2, 3], dtype=int32)
    """

    draw: Array
    at: Point
    kernel_state: Any


class Machine(Protocol):
    """Transition of the lanes of a device by one tick: one gradient of each lane, or whole draws.

    A lane's draws must depend on its own position and keys alone, not on other lanes. Machines are compared by value:
    equal ones compile to one program. `phalanx.kernels.protocol.whole_draw` makes one of a function. Derive from this
    class to have the defaults.

    Attributes:
        makes_whole_draws: true if a tick is a whole draw of every lane.
        uses_gradient: true if a step's evaluations are gradients.
        knows_mesh: true if it can move sharded variables; False for algorithms written for one device.

    Example:
        >>> import phalanx as phx
        >>> machine = phx.nuts().machine
        >>> machine.makes_whole_draws, machine.uses_gradient
        (False, True)
    """

    makes_whole_draws: ClassVar[bool] = True
    uses_gradient: ClassVar[bool] = True
    knows_mesh: ClassVar[bool] = True

    @property
    def least_coordinates(self) -> int:
        """The fewest coordinates that a position must have."""
        return 1

    def init(self, now: LaneState, keys: Keys, target: LaneTarget) -> PyTree:
        """Return the machine's further state for lanes at rest, about to begin their draws; by default empty."""
        return ()

    def step(
        self, now: LaneState, active: Bool[Array, "lanes"], keys: Keys, target: LaneTarget, tuning: PyTree
    ) -> tuple[LaneState, Bool[Array, "lanes"], PyTree]:
        """Advance all lanes by one tick.

        A machine whose draws take several ticks must return `draw` and `at` of lanes that are not active unchanged,
        and must bring these lanes to rest: the next tick in which they are active begins their draw again, from `at`.
        A machine of whole draws may ignore `active`: the positions of lanes that are not active may move. No machine
        needs to mask its results: the caller ignores the end of a draw, and its statistics, in lanes that are not
        active.

        Args:
            now: the lanes' state. The `now.at` of lanes at rest, which have no draw under way, may have changed: chains
                are relocated.
            active: true for lanes whose draws are wanted in this tick, `(lanes,)`.
            keys: the lanes' keys, of which each draw has one.
            target: the log density.
            tuning: hyperparameters; a metric among them acts on vectors.

        Returns:
            The lanes' next state, true for lanes that have ended a draw `(lanes,)`, and that draw's statistics, an
            `Info` or more.
        """
        ...


@dataclass(frozen=True)
class Kernel:
    """A Markov kernel that leaves the target invariant, or nearly so, such as `phx.nuts`, `phx.hmc`, `phx.sgld`.

    Two kernels with equal machines and tuners compile to one program: hyperparameters are arguments, in `tuning`.

    Attributes:
        name: how the user wrote it.
        machine: moves the lanes.
        tuning: hyperparameters to begin with, a NamedTuple of arrays.
        tuners: tuners of warm-up, in the order in which they set hyperparameters: `StepSize`, `Metric`,
            `TrajectoryLength`, and tuners of your own.
        tuned_steps: warm-up iterations in which anything is tuned; None means all of them.
        statistics: fields of the info of a draw.
        relocates: true if warm-up moves chains that are stuck in regions of negligible posterior mass.
        batch_size: rows of an evaluation, which then gives an estimate of a draw's log density; None for all rows.
        bias: the bias of the draws, in a sentence, for a kernel that does not leave the target invariant.
        centring: variables to be partially centred, with weights that warm-up learns: their names, or "auto"; None for
            none.
        superchains: number of groups in which many chains start if the user gives no initial values, so that the
            verdict can compare groups of short chains; 0 if every chain has a start of its own.

    Example:
        >>> import phalanx as phx
        >>> kernel = phx.hmc(num_steps=8)
        >>> kernel.name, [type(tuner).__name__ for tuner in kernel.tuners]
        ('hmc(num_steps=8, step_size=None)', ['Metric', 'StepSize'])
    """

    name: str = field(compare=False)
    machine: Machine
    tuning: Any = field(compare=False)
    tuners: tuple[Tuner, ...] = ()
    _: KW_ONLY
    tuned_steps: int | None = field(default=None, compare=False)
    statistics: tuple[str, ...] = Info._fields
    relocates: bool = field(default=True, compare=False)
    batch_size: int | None = None
    bias: str | None = field(default=None, compare=False)
    centring: str | tuple[str, ...] | None = field(default=None, compare=False)
    superchains: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if getattr(type(self.machine), "step", Machine.step) is Machine.step:
            raise TypeError(
                f"{self.name}: the machine {type(self.machine).__name__} must have a method step(now, active, keys, "
                f"target, tuning), as phx.kernels.Machine describes it; before 0.2 it was called tick."
            )
        are_tuners = isinstance(self.tuners, tuple) and all(isinstance(tuner, Tuner) for tuner in self.tuners)
        if not are_tuners or any(isinstance(tuner, type) or not isinstance(tuner, Hashable) for tuner in self.tuners):
            raise TypeError(
                f"{self.name}: tuners must be a tuple of tuners that have a hash, as frozen dataclasses have, such as "
                f"(phx.kernels.StepSize(0.8),); got {self.tuners!r}."
            )

    @property
    def learns_moments(self) -> bool:
        """True if a tuner learns from moments of positions and gradients, which takes a kernel with gradients."""
        return self.machine.uses_gradient and any(tuner.learns_from != "statistics" for tuner in self.tuners)

    def on(self, target: Target) -> Kernel:
        """Return the kernel with a metric that the user has given laid out for this target."""
        given_metric = getattr(self.tuning, "metric", None)
        if not isinstance(given_metric, GivenMetric):
            return self
        return replace(self, tuning=self.tuning._replace(metric=metric_on(given_metric, target)))
