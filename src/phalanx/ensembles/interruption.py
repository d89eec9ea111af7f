"""Ctrl-C between steps: a step has its members' arrays in hand, and would lose them half-way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def when_done() -> Iterator[None]:
    """Ctrl-C waits until the block is done; a second one does not."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[Any] = []

    def remember(*signalled: Any) -> None:
        came.append(signalled)
        if len(came) > 1:
            before(*signalled)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        before(*came[0])
