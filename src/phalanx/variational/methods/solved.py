"""A fit without steps: a climb finds the guide, or `num_steps=0`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

from phalanx.learning.loop import Stop
from phalanx.mesh.specs import PyTree
from phalanx.variational.methods.step import Losses
from phalanx.variational.result import FitOutcome


class Solved(NamedTuple):
    """The method that makes no steps; its state is the parameters.

    Attributes:
        seen: number of the next batch.
        unsettled: why learning may not have ended; empty if it has.
    """

    seen: int = 0
    unsettled: str = ""

    def init(self, start: dict[str, PyTree]) -> dict[str, Any]:
        """Return the parameters."""
        return start

    def step(self, state: dict[str, PyTree], say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
        """Yield no state."""
        return iter(())

    def done(self, state: dict[str, PyTree]) -> bool:
        """Return True."""
        return True

    def report(self, state: dict[str, PyTree]) -> NoReturn:
        """Raise: there are no blocks of steps."""
        raise NotImplementedError

    def stop(self, state: dict[str, PyTree], reason: Stop) -> str:
        """Return no line."""
        return ""

    def outcome(self, state: dict[str, PyTree], stopped: Stop | None) -> FitOutcome:
        """Return the parameters."""
        return FitOutcome(state, Losses.of(), seen=self.seen, unsettled=self.unsettled)
