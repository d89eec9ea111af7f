"""Ctrl-C on the command line: exit status 130, and a sentence on the files that exist."""

from __future__ import annotations

from contextlib import AbstractContextManager

from phalanx.mesh.interrupts import ended_by_interrupt

STATUS = 130
"""Exit status that shells expect of an interrupted program."""


class Interrupted(Exception):
    """End of a run by Ctrl-C, with a sentence for the user."""


def explain_interrupt(message: str) -> AbstractContextManager[None]:
    """Return a context that turns Ctrl-C into `Interrupted` with a message."""

    def explain() -> None:
        raise Interrupted(message) from None

    return ended_by_interrupt(explain)
