"""Rule for Ctrl-C and SIGTERM: a loop records them during a block and ends between two blocks, in all processes."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from phalanx.mesh.failure import AgreedExit, AgreedInterrupt, all_end_by


class Interrupts:
    """Ctrl-C, and SIGTERM where something can be saved, in any of several processes.

    A block holds the arrays of a run or of members, and an interrupted block would lose them. Therefore the first
    signal waits for the end of the block; in a single process a second one does not.

    Args:
        saves: record SIGTERM too. Without a checkpoint SIGTERM ends a process at once, as elsewhere.
    """

    def __init__(self, saves: bool = False) -> None:
        self._number, self._signals = 0, (signal.SIGINT, *([signal.SIGTERM] if saves else []))
        self._before: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Record signals in a `with` block; `agree`, or the end of the block, raises them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in self._signals}
        # a handler of C, such as that of JAX for preemptions, is None here
        ends = before.get(signal.SIGTERM, signal.SIG_IGN) in (None, signal.SIG_DFL)
        held = [n for n, handler in before.items() if callable(handler) or (n == signal.SIGTERM and ends)]
        self._before = {number: before[number] for number in held}
        for number in self._before:
            signal.signal(number, self._record)
        try:
            yield
        finally:
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if jax.process_count() == 1:  # several processes may have left the block at different times
            self.agree()

    def agree(self, after: Any = None) -> None:
        """Raise what the signal means in all processes, if one has received one. All must call it at the same place.

        Args:
            after: arrays to wait for, whose sums over processes could deadlock with the sum that agrees.

        Raises:
            KeyboardInterrupt: after Ctrl-C, unless the program handles it otherwise.
            AgreedExit: after SIGTERM, with the same exception.
        """
        number, self._number = self._number, 0
        if jax.process_count() > 1:
            jax.block_until_ready(after)
            number = int(multihost_utils.process_allgather(np.array([number])).max())
            if number == signal.SIGINT:
                raise AgreedInterrupt
        if number:
            try:
                self._act(number, None)
            except SystemExit as ended:
                raise AgreedExit(ended.code) from None

    def _record(self, number: int, frame: Any) -> None:
        if self._number and jax.process_count() == 1:
            self._act(number, frame)
        self._number = number

    def _act(self, number: int, frame: Any) -> None:
        handler = self._before.get(number)
        if callable(handler):
            handler(number, frame)
        else:
            sys.exit(128 + number)


@contextmanager
def ended_by_interrupt(then: Callable[[], Any]) -> Iterator[None]:
    """End a `with` block at a KeyboardInterrupt, and call `then`, which may raise it again.

    One that a process of several raises alone passes through: the others would wait for what that process returns.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if not all_end_by(error):
            raise
        then()


def listen() -> None:
    """Enable SIGINT, which shells disable in background jobs."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
