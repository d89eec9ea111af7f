"""Rule for Ctrl-C and SIGTERM: a loop records them during a block and ends between two blocks, in all processes."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from phalanx.mesh.failure import AgreedExit, AgreedInterrupt, all_end_by
from phalanx.mesh.specs import PyTree


class Interrupts:
    """Ctrl-C, and SIGTERM where something can be saved, in any of several processes.

    A block holds the arrays of a run or of members, and an interrupted block would lose them. Therefore the first
    signal waits for the end of the block; in a single process a second Ctrl-C does not.

    Args:
        saves: record SIGTERM too. Without a checkpoint SIGTERM ends a process at once, as elsewhere.
    """

    def __init__(self, saves: bool = False) -> None:
        self._number = 0
        self._signals = (signal.SIGINT, *([signal.SIGTERM] if saves else []))
        self._before: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
        self._recorded: set[int] = set()
        self._has_ended = False
        """True once SIGTERM has ended the loop."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Record signals in a `with` block; `agree`, or the end of the block, raises them.

        After the exception that SIGTERM raises, SIGTERM is still recorded, until the end of `saving`.
        """
        self._begin_to_record(self._signals)
        signals: tuple[int, ...] = self._signals
        try:
            yield
            self._agree_alone()
        except AgreedExit:
            signals = (signal.SIGINT,)
            raise
        finally:
            self._end_to_record(signals)
        self._agree_alone()  # on a signal that came after the first call

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Let SIGTERM wait for the end of a save in a `with` block; one that repeats the SIGTERM before is ignored.

        Schedulers signal all processes of a group, and a launcher passes its own signal on: a process gets two.
        """
        self._begin_to_record(self._signals[1:])
        try:
            yield
        finally:
            self._end_to_record(self._signals[1:])
            number = self._number
            self._number = 0
            if number == signal.SIGTERM and not self._has_ended:
                self._act(number, None)

    def _begin_to_record(self, numbers: Iterable[int]) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in set(numbers) - self._recorded:
            handler = signal.getsignal(number)
            # a handler of C, such as that of JAX for preemptions, is None here
            if callable(handler) or (number == signal.SIGTERM and handler in (None, signal.SIG_DFL)):
                self._before[number] = handler
                self._recorded.add(number)
                signal.signal(number, self._record)

    def _end_to_record(self, numbers: Iterable[int]) -> None:
        for number in self._recorded.intersection(numbers):
            self._recorded.remove(number)
            handler = self._before[number]
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _agree_alone(self) -> None:
        if jax.process_count() == 1:  # several processes may leave `held` at different times
            self.agree()

    def agree(self, after: PyTree = None) -> None:
        """Raise what the signal means in all processes, if one has received one. All must call it at the same place.

        Args:
            after: arrays to wait for, whose sums over processes could deadlock with the sum that agrees.

        Raises:
            KeyboardInterrupt: after Ctrl-C, unless the program handles it otherwise.
            AgreedExit: after SIGTERM, with the same exception.
        """
        number = self._number
        self._number = 0
        if jax.process_count() > 1:
            jax.block_until_ready(after)
            number = int(multihost_utils.process_allgather(np.array([number])).max())
            if number == signal.SIGINT:
                raise AgreedInterrupt
        if number:
            try:
                self._act(number, None)
            except SystemExit as ended:
                self._has_ended = True
                raise AgreedExit(ended.code) from None

    def _record(self, number: int, frame: FrameType | None) -> None:
        # a repeated SIGTERM asks for nothing more, and would lose the block
        if self._number and number != signal.SIGTERM and jax.process_count() == 1:
            self._act(number, frame)
        self._number = number

    def _act(self, number: int, frame: FrameType | None) -> None:
        handler = self._before.get(number)
        if callable(handler):
            handler(number, frame)
        else:
            sys.exit(128 + number)


@contextmanager
def ended_by_interrupt(then: Callable[[], object]) -> Iterator[None]:
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
