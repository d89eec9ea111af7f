"""Ctrl-C from the command line: status 130, and a sentence that says what there is."""

from __future__ import annotations

from contextlib import AbstractContextManager

from phalanx.mesh.interrupts import ended_by_interrupt

STATUS = 130
"""What shells expect of a program that was interrupted."""


class Interrupted(Exception):
    """The run was ended by Ctrl-C, with what there is to say about it."""


def saying(what: str) -> AbstractContextManager[None]:
    """Say of Ctrl-C in a `with` block what it came to, by raising `Interrupted` in place of `KeyboardInterrupt`."""

    def say() -> None:
        raise Interrupted(what) from None

    return ended_by_interrupt(say)
