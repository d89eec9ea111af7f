"""Rule for the end of a fit: the guide no longer changes, at the rate and at half of it.

Iterates move about the solution with a spread proportional to the rate; their average is closer. The averages of two
successive windows of steps are compared by the guides that they give: if draws of both, from the same random numbers,
have the same medians and widths, the fit is stationary at this rate. The rate is then halved, and further windows are
compared. The error of the average is proportional to the rate, so if half the rate gives the same guide, no lower rate
gives another. The last window is also compared with the one before the last: over two windows a drift moves the guide
twice as far, and noise no farther. A loss that still rises delays the end; a flat one is no evidence.

Source:
    Welandawe, Andersen, Vehtari, Huggins (2022), Robust, automated, and accurate black-box variational inference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

FIRST = 60
"""Steps of the first window, whose first half is not averaged. Fits that begin well end after two and a half of these
windows; `benchmarks/stopping.py` counts false stops."""

GROWTH = 1.5
"""Growth of the windows' length after one that did not agree with the one before."""

AGREEMENTS = 2
"""Windows in a row that must agree, each at half the rate of the one before; the last also with that before them."""

TOLERANCE = 0.05
"""The most that a median may move, in standard deviations of the guide, and a width in parts of itself."""

NEAR = 6.0
"""Tolerances within which windows nearly agree."""

PATIENT = 2
"""Near agreements in a row after which the rate may be lowered."""

NATS = 0.05
"""A rise of the bound that is too small to wait for."""


class AveragingWindow(NamedTuple):
    """Successive steps whose parameters are averaged."""

    begin: int
    end: int


@dataclass(frozen=True)
class Settling:
    """State of the rule: the current window and rate. `look` returns the next.

    Attributes:
        num_steps: most steps of the fit.
        stops: whether the fit ends when it has settled.
        window: the current window.
        rate: factor on the optimiser's rate.
        agreements: windows in a row that agreed with the one before.
        compared: whether a window precedes the current one.
    """

    num_steps: int
    stops: bool
    window: AveragingWindow
    rate: float = 1.0
    agreements: int = 0
    compared: bool = False
    _before: tuple[float, float] = (math.nan, math.nan)
    _near: int = 0
    _change: float = math.inf
    _alike: bool = False

    @classmethod
    def at_first_window(cls, num_steps: int, stops: bool = True, first: int = FIRST) -> Settling:
        """Return the state of the rule before the first step.

        The first window has `first` steps. A fit that does not stop has a single window, its last quarter.
        """
        if not stops:
            return cls(num_steps, stops, AveragingWindow(3 * num_steps // 4, num_steps))
        window = _window(0, min(first, num_steps), num_steps)
        return cls(num_steps, stops, window._replace(begin=min(first, num_steps) // 2))

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        return {name: x.item() if isinstance(x, np.generic) else x for name, x in asdict(self).items()}

    @classmethod
    def of_json(cls, entries: Mapping[str, Any]) -> Settling:
        """Return the inverse of `to_json`."""
        return cls(**{**entries, "window": AveragingWindow(*entries["window"]), "_before": tuple(entries["_before"])})

    @property
    def settled(self) -> bool:
        """True if the guide no longer changes."""
        return self.stops and self.agreements >= AGREEMENTS and self._alike

    def end_of(self, step: int) -> int:
        """Return the next step at which averages begin, or the window ends."""
        return self.window.begin if step < self.window.begin else self.window.end

    def look(self, step: int, bounds: Float[np.ndarray, "step"], change: float, across: float) -> Settling:
        """Return the state after the end of a window.

        Args:
            step: steps that the fit has made.
            bounds: the bounds of the window's steps.
            change: change of the average since the window before, in tolerances.
            across: change since the window before that.
        """
        length = step - self.window.begin
        mean, sd = mean_and_sd(bounds)
        now = mean, sd / math.sqrt(max(len(bounds), 1))
        rise = now[0] - self._before[0]
        error = math.hypot(now[1], self._before[1])
        still = not self.compared or not rise > max(NATS, 3.0 * error)  # NaN: the first window
        agrees = self.compared and change <= 1.0 and still
        # windows that nearly agree, one after the other, differ by noise, which a lower rate reduces; but if the first
        # and the last of them are the farthest apart, the guide may still drift, which a lower rate slows down
        near = self._near + 1 if self.compared and still and 1.0 < change <= NEAR else 0
        lower = agrees or (near >= PATIENT and across <= max(change, self._change))
        state = replace(
            self,
            rate=self.rate * (0.5 if lower else 1.0),
            agreements=self.agreements + 1 if agrees else 0,
            compared=True,
            _before=now,
            _near=0 if lower else near,
            _change=change,
            _alike=across <= 1.0,
        )
        if state.settled:
            return state
        return replace(state, window=_window(step, length if agrees else math.ceil(GROWTH * length), self.num_steps))


def mean_and_sd(bounds: Float[np.ndarray, "step"]) -> tuple[float, float]:
    """Return the mean and the standard deviation of the bounds of steps, without those that failed; NaN if all did."""
    numbers = bounds[~np.isnan(bounds)]
    return (float(numbers.mean()), float(numbers.std())) if numbers.size else (math.nan, math.nan)


def _window(begin: int, length: int, num_steps: int) -> AveragingWindow:
    end = begin + length
    return AveragingWindow(begin, num_steps if num_steps - end < length else end)  # the last window takes the rest
