"""When a fit has ended: what it has learned no longer changes, at its rate and at half of it.

Iterates move about the solution with a spread that follows the rate; their average is closer. Averages over two
windows of steps, one after the other, are compared by the guides they make: where draws of both, made with the same
random numbers, have the same medians and widths, the fit is stationary at this rate. The rate is then halved, and
windows are compared on. What the average is off by follows the rate, so if half the rate makes the same guide,
no lower rate will make another. The last window is compared with the one before the last, too: over two windows what
moves on has moved twice as far, and noise no further. A flat-looking loss plays no part but to hold the end off while
it still rises.

Source:
    Welandawe, Andersen, Vehtari, Huggins (2022), Robust, automated, and accurate black-box variational inference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

FIRST = 60
"""Steps of the first window; of these the first half is not averaged. Fits that begin well end after two and a half of
them; how often a stop is false says `benchmarks/stopping.py`."""

GROWTH = 1.5
"""How much longer a window is after one that did not agree with the one before."""

AGREEMENTS = 2
"""Windows in a row that must agree, each at half the rate of the one before; and the last with that before them."""

TOLERANCE = 0.05
"""The most that a median may move, in standard deviations of the guide, and a width in parts of itself."""

NEAR, PATIENT = 6.0, 2
"""In tolerances, what is nearly an agreement; and from how many of them in a row the rate may be lowered."""

NATS = 0.05
"""A rise of the bound that is too small to wait for."""


class Window(NamedTuple):
    """A stretch of steps that is averaged over."""

    begin: int
    end: int


@dataclass(frozen=True)
class Settling:
    """When windows end, what rate comes next, and when to stop: a value, which `look` moves on.

    Attributes:
        num_steps: of the fit, at most.
        stops: whether the fit ends where it has settled.
        window: the one under way.
        rate: factor on the optimiser's rate.
        agreements: windows in a row that agreed with the one before.
        compared: whether there is a window before this one.
    """

    num_steps: int
    stops: bool
    window: Window
    rate: float = 1.0
    agreements: int = 0
    compared: bool = False
    _before: tuple[float, float] = (math.nan, math.nan)
    _near: int = 0
    _change: float = math.inf
    _alike: bool = False

    @classmethod
    def begin(cls, num_steps: int, stops: bool = True, first: int = FIRST) -> Settling:
        """Return the state before the first window, of so many steps; a fit that does not stop has one, at its end."""
        if not stops:
            return cls(num_steps, stops, Window(3 * num_steps // 4, num_steps))
        window = _window(0, min(first, num_steps), num_steps)
        return cls(num_steps, stops, window._replace(begin=min(first, num_steps) // 2))

    @property
    def settled(self) -> bool:
        """Whether to stop."""
        return self.stops and self.agreements >= AGREEMENTS and self._alike

    def end_of(self, step: int) -> int:
        """The step up to which nothing is decided."""
        return self.window.begin if step < self.window.begin else self.window.end

    def look(self, step: int, bounds: np.ndarray, change: float, across: float) -> Settling:
        """Return what is decided where a window has ended.

        Args:
            step: the fit's.
            bounds: the window's.
            change: how far the average has changed since the window before, in tolerances.
            across: and since the one before that.
        """
        length = step - self.window.begin
        now = (float(np.nanmean(bounds)), float(np.nanstd(bounds)) / math.sqrt(max(len(bounds), 1)))
        rise, error = now[0] - self._before[0], math.hypot(now[1], self._before[1])
        still = not self.compared or not rise > max(NATS, 3.0 * error)  # NaN: nothing to compare with
        agrees = self.compared and change <= 1.0 and still
        # windows that only nearly agree, one after the other, are noise, of which a lower rate has less; but where the
        # first and the last of them are the furthest apart, they may be on their way, which a lower rate makes longer
        near = self._near + 1 if self.compared and still and 1.0 < change <= NEAR else 0
        lower = agrees or (near >= PATIENT and across <= max(change, self._change))
        found = replace(
            self, rate=self.rate * (0.5 if lower else 1.0), agreements=self.agreements + 1 if agrees else 0,
            compared=True, _before=now, _near=0 if lower else near, _change=change, _alike=across <= 1.0,
        )  # fmt: skip
        if found.settled:
            return found
        return replace(found, window=_window(step, length if agrees else math.ceil(GROWTH * length), self.num_steps))


def _window(begin: int, length: int, num_steps: int) -> Window:
    end = begin + length
    return Window(begin, num_steps if num_steps - end < length else end)  # what is left makes no window of its own
