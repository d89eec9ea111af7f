"""A fit of which nothing is learned by steps: a climb finds the guide, or no steps were asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

from phalanx.learning.loop import Stop
from phalanx.variational.methods.method import Outcome


class Solved(NamedTuple):
    """The method that is done as soon as it has begun; its state are the parameters.

    Attributes:
        seen: number of the batch that comes next.
        unsettled: why it cannot be said that learning has ended; empty when it has.
    """

    seen: int = 0
    unsettled: str = ""

    def init(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters that were found."""
        return start

    def step(self, state: dict[str, Any], say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
        """Make no step."""
        return iter(())

    def done(self, state: dict[str, Any]) -> bool:
        """Return True."""
        return True

    def report(self, state: dict[str, Any]) -> NoReturn:
        """Raise: there are no blocks of steps."""
        raise NotImplementedError

    def stop(self, state: dict[str, Any], reason: Stop) -> str:
        """Return no line."""
        return ""

    def outcome(self, state: dict[str, Any], stopped: Stop | None) -> Outcome:
        """Return the parameters."""
        return Outcome(state, seen=self.seen, unsettled=self.unsettled)
