"""What a kernel is: two pure functions and the hyperparameters to begin with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import numpy as np
from jax import Array

from phalanx.kernels.lanes import Columns, Lanes
from phalanx.mesh.keys import Keys
from phalanx.mesh.space import Position
from phalanx.programs.target import Density, Target


class State(Protocol):
    """Where a chain is. A state caches what the next step would otherwise compute again."""

    @property
    def position(self) -> Position:
        """The unconstrained position."""
        ...

    @property
    def log_density(self) -> Array:
        """Log density at the position."""
        ...


class Info(NamedTuple):
    """What one step did; scalars, equal on all devices of a chain.

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
    energy: Array


class Start(NamedTuple):
    """Where a chain begins; the gradient is empty for kernels without."""

    position: Position
    log_density: Any
    gradient: Position


class Rest(NamedTuple):
    """Where chains are between two draws: all that the draws to come depend on, but for seed, data and tuning.

    Attributes:
        draw: number of the next draw, `(chain,)`.
        state: a `Start` by variable, or a kernel's own state; arrays have the chains first.
    """

    draw: Any
    state: Any


class Ended(NamedTuple):
    """What the lanes of a device drew in a tick.

    Attributes:
        done: which lanes ended a draw, `(lanes,)`; what the others show here counts for nothing.
        position, gradient: of the draw, by group of coordinates, `(lanes, coordinates)`; a kernel without gradients
            has none.
        log_density: at the position, `(lanes,)`.
        info: what the draws did.
    """

    done: Array
    position: tuple[Array, ...]
    gradient: tuple[Array, ...]
    log_density: Array
    info: Any


class Machine(Protocol):
    """A kernel that moves all lanes of a device at once, tick by tick, where draws take lanes different times.

    What a lane draws must depend on its own position and keys alone, not on where the other lanes are. Machines are
    compared by value: equal ones compile to one program.

    Attributes:
        skips: numbers of draws that a trajectory uses up which is abandoned.
    """

    skips: ClassVar[int]

    def start(self, lanes: Lanes, start: Start, keys: Keys, draw: Array) -> Any:
        """Lanes at rest at positions `(lanes, ...)` by variable, about to make the draw of this number, or of these."""
        ...

    def tick(
        self, underway: Any, active: Array, abandon: Array, lanes: Lanes, tuning: Any, keys: Keys
    ) -> tuple[Any, Ended]:
        """One gradient evaluation of every lane.

        Args:
            underway: where the lanes are.
            active: lanes that may start and end draws, `(lanes,)`; the others are at rest, and stay so.
            abandon: whether to end all trajectories without a draw, because the tuning has changed; a scalar.
            lanes: the target.
            tuning: hyperparameters.
            keys: the lanes' keys.

        Returns:
            Where they are then, and what was drawn.
        """
        ...

    def moved(self, underway: Any, take: Callable[[Array, int], Array]) -> Any:
        """Lanes that go on at the positions of others, on the host; `take(leaf, axis)` takes what is theirs.

        Their trajectories are abandoned in the next tick. Draws keep their numbers, and so their keys.
        """
        ...

    def rest(self, lanes: Lanes, underway: Any) -> Rest:
        """Where lanes are that are between two draws; of a lane within a trajectory it tells nothing of use."""
        ...

    def resume(self, lanes: Lanes, rest: Rest, keys: Keys) -> Any:
        """The inverse of `rest`: lanes that make the very same draws."""
        ...

    def layout(self, target: Target, underway: Callable[[], Any]) -> Any:
        """How what is under way is laid out over the mesh; `underway()` gives its shapes on one device."""
        ...


@dataclass(frozen=True)
class Kernel:
    """A Markov kernel that leaves the target invariant, such as `phx.nuts`, `phx.hmc`, `phx.rwmh`, `phx.from_blackjax`.

    Two kernels with equal `init` and `step` compile to one program: hyperparameters are arguments, in `tuning`.

    Attributes:
        name: how the user wrote it.
        init: `init(key, position, density) -> state`.
        step: `step(key, state, density, tuning) -> (state, info)`.
        tuning: hyperparameters to begin with, a NamedTuple of arrays; `step_size` is the one adaptation may change.
        target_acceptance: the acceptance rate the step size is tuned to; None where it is given, or there is none.
        tuned_steps: warm-up iterations the step size is tuned in; None means all of them.
        uses_gradient: whether a step's evaluations are gradients.
        knows_mesh: whether it may move variables spread over devices; False for algorithms written for one device.
        machine: the kernel for all lanes at once, where there is one; a run prefers it to `step`.
        metric: what warm-up learns of the posterior's covariance: "diagonal", "dense", "auto", or None for nothing.
            It is put into the tuning's `metric`; the kernel's machine then reports gradients.
        statistics: fields of the info a step gives.
        tunes_trajectory: whether warm-up finds the tuning's `trajectory_length`, from the statistics
            `trajectory_gradient` and `jump_gradient`; it takes two chains at least.
        least_coordinates: the fewest that a position must have.
        relocates: whether warm-up moves chains that have settled where the posterior has next to no mass.
    """

    name: str = field(compare=False)
    init: Callable[[Array, Position, Density], Any]
    step: Callable[[Array, Any, Density, Any], tuple[Any, Any]]
    tuning: Any = field(compare=False)
    target_acceptance: float | None = None
    tuned_steps: int | None = field(default=None, compare=False)
    uses_gradient: bool = True
    knows_mesh: bool = True
    machine: Machine | None = None
    metric: str | None = None
    statistics: tuple[str, ...] = Info._fields
    tunes_trajectory: bool = False
    least_coordinates: int = 1
    relocates: bool = field(default=True, compare=False)

    @property
    def is_tuned(self) -> bool:
        """Whether warm-up has anything to learn."""
        return self.target_acceptance is not None or self.metric is not None or self.tunes_trajectory


def start_of(lanes: Lanes, position: Columns, log_density: Array, gradient: Columns = ()) -> Start:
    """Where lanes are, by variable, given columns."""

    def by_variable(columns: Columns) -> Position:
        return lanes.unflatten(tuple(part.T for part in columns)) if columns else {}

    return Start(by_variable(position), log_density, by_variable(gradient))


def hyperparameter(value: float | int) -> Any:
    """A number as compiled code takes it: one of NumPy's, since a kernel may be made before JAX starts."""
    return np.asarray(value, np.int32 if isinstance(value, int) else jax.dtypes.canonicalize_dtype(float))


def positive(kernel: str, name: str, value: Any) -> None:
    """Refuse a hyperparameter that is not a positive number."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ValueError(f"{kernel}: {name} must be a positive number, got {value!r}.")


def share(kernel: str, name: str, value: Any) -> None:
    """Refuse a hyperparameter that is not a number between 0 and 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        raise ValueError(f"{kernel}: {name} must lie between 0 and 1, got {value!r}.")


def one_of(kernel: str, name: str, value: Any, known: Sequence[str]) -> None:
    """Refuse a hyperparameter that is none of a few words."""
    if value not in known:
        raise ValueError(f"{kernel}: {name} must be one of {', '.join(map(repr, known))}; got {value!r}.")


def whole(kernel: str, name: str, value: Any, least: int = 1) -> int:
    """A hyperparameter as a whole number; refuse one that is none of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{kernel}: {name} must be a whole number, at least {least}; got {value!r}.")
    return int(value)
