"""Rule for Ctrl-C: a loop records it during a block and ends between two blocks, in all processes at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


class Interrupts:
    """Ctrl-C in any of several processes.

    A block holds the arrays of a run or of members, and an interrupted block would lose them. Therefore the first
    Ctrl-C waits for the end of the block; in a single process a second one does not.
    """

    def __init__(self) -> None:
        self._pressed, self._before = False, signal.default_int_handler

    @contextmanager
    def held(self) -> Iterator[None]:
        """Record Ctrl-C in a `with` block; `agree`, or the end of the block, raises it."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            yield
            return
        self._before = before
        signal.signal(signal.SIGINT, self._press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
        if jax.process_count() == 1:  # several processes may have left the block at different times
            self.agree()

    def agree(self) -> None:
        """Raise KeyboardInterrupt in all processes, if one has been interrupted. All must call it at the same place."""
        pressed, self._pressed = self._pressed, False
        if jax.process_count() > 1:
            if multihost_utils.process_allgather(np.array([pressed])).any():
                raise KeyboardInterrupt
        elif pressed:
            self._before(signal.SIGINT, None)

    def _press(self, number: int, frame: Any) -> None:
        if self._pressed and jax.process_count() == 1:
            self._before(number, frame)
        self._pressed = True


@contextmanager
def ended_by_interrupt(then: Callable[[], Any]) -> Iterator[None]:
    """End a `with` block at a KeyboardInterrupt, and call `then`, which may raise it again."""
    try:
        yield
    except KeyboardInterrupt:
        then()


def listen() -> None:
    """Enable SIGINT, which shells disable in background jobs."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
