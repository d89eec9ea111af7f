"""A fit of which nothing is learned by steps: a climb finds the guide, or none were asked for. It begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.run.progress import Progress, Report
from phalanx.variational.step import Made


@dataclass
class Solved:
    """What `Learning` is to a guide that is learned.

    Attributes:
        result: the parameters, on the real line; their shapes before they are known.
    """

    result: dict[str, Any]
    made: Sequence[Made] = ()
    step: int = 0
    gradients: int = 0
    failed: int = 0
    seen: int = 0
    interrupted: bool = False
    unsettled: str = ""

    def compile(self) -> None:
        """There are no steps."""

    def begin(self, free: dict[str, Any]) -> None:
        """Take what was found."""
        self.result = free

    def run(self, display: Progress, look: Sequence[Callable[[Report], Any]], seconds: float | None) -> None:
        """Nothing is left to do."""
