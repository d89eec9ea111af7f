"""Ctrl-C from the command line: status 130, and a sentence that says what there is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STATUS = 130
"""What shells expect of a program that was interrupted."""


class Interrupted(Exception):
    """The run was ended by Ctrl-C, with what there is to say about it."""


def listen() -> None:
    """Let SIGINT interrupt, also in a job that a shell started in the background, where it is ignored."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Say of Ctrl-C in a `with` block what it came to.

    Raises:
        Interrupted: in place of `KeyboardInterrupt`.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(what) from None
