"""Messages that devices send one another in an evaluation of a log density, by line of the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from phalanx.density.target import Target
from phalanx.placements import Message

CHEAPER = {
    "scan": "To loop over another axis than that of the rows, or to use jax.vmap over rows, sends nothing.",
    "sort": "To sort the data once, before the run, sends nothing.",
    "cholesky": "A covariance of fewer columns, as of inducing points, sends less.",
}
"""Cheaper ways to write operations for which rows are gathered."""


class Communication(NamedTuple):
    """Collective in an evaluation of the log density and its gradient.

    Attributes:
        collective: "all-reduce", "all-gather" or "reduce-scatter".
        axis: the mesh axis, or several joined by "+".
        nbytes: bytes that each device sends or receives.
        operation: the primitive that needs it; "result" for the sum of value and gradient at the end,
            "input" for rows that the evaluation begins with.
        line: the line of the model, such as "model.py:12"; empty for an operation of a library.
    """

    collective: str
    axis: str
    nbytes: int
    operation: str
    line: str

    @classmethod
    def of(cls, message: Message) -> Communication:
        """Return a message of a program in words."""
        axis = message.axis if isinstance(message.axis, str) else "+".join(message.axis)
        line = "" if message.line is None else str(message.line)
        return cls(message.collective, axis, message.nbytes, message.primitive, line)


def communication_of(target: Target) -> tuple[Communication, ...]:
    """Return the messages of one evaluation of a log density and its gradient; none if no rows are sharded."""
    return tuple(map(Communication.of, target.messages()))


def notice_of_gathers(target: Target, messages: Sequence[Communication]) -> str | None:
    """Return a sentence if an evaluation gathers more bytes than the data have on a device."""
    gathers = [message for message in messages if message.collective == "all-gather"]
    shapes = target.arguments.local_shapes()
    of_data = sum(math.prod(shape.shape) * shape.dtype.itemsize for shape in shapes)
    total = sum(message.nbytes for message in gathers)
    if not gathers or total <= of_data:
        return None
    largest = max(gathers, key=lambda message: message.nbytes)
    where = f" at {largest.line}" if largest.line else ""
    way = CHEAPER.get(largest.operation, f"Fewer devices along {largest.axis!r} send less.")
    return (
        f"each evaluation of the log density gathers {total:,} bytes of rows from all devices, more than the "
        f"{of_data:,} bytes of data on each; most of it for `{largest.operation}`{where}. The result is right. {way}"
    )
