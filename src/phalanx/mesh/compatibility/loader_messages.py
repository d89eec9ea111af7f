"""Filter of standard error for a false alarm of XLA, printed for every program that is read from the cache.

JAX before 0.11 treats LLVM's preferences, such as `+prefer-no-gather`, as features that a CPU must have. It writes two
thousand characters for each program that it loads, although the program is right (jax #38445, openxla/xla #44565).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax

FALSE_ALARM = re.compile(rb"cpu_aot_loader\.cc:\d+\] Loading XLA:CPU AOT result\. Target machine feature \+prefer-no-")

PATIENCE = 1.0
"""Seconds to wait for the last lines."""

_lock = threading.Lock()
_filters: list[_Filter] = []
"""The active filter, once for each thread that compiles."""


@contextmanager
def without_false_alarms() -> Iterator[None]:
    """Drop lines of the false alarm from standard error, also those that C++ code writes, and forward all others."""
    if jax.__version_info__ >= (0, 11):
        yield
        return
    with _lock:
        _filters.append(_filters[0] if _filters else _Filter())
    try:
        yield
    finally:
        with _lock:
            last = _filters.pop()
            if not _filters:
                last.close()


class _Filter:
    """A pipe that replaces standard error, whose lines a thread forwards."""

    def __init__(self) -> None:
        self._original = os.dup(2)
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        self._thread = threading.Thread(target=self._pass_on, args=(reading,), daemon=True)
        self._thread.start()

    def _pass_on(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                if not FALSE_ALARM.search(line):
                    os.write(self._original, line)
        os.close(self._original)

    def close(self) -> None:
        """Restore standard error, which ends the pipe, and wait until the remaining lines have been forwarded.

        A process that was started meanwhile holds the pipe open: its lines are forwarded for as long as it runs.
        """
        os.dup2(self._original, 2)
        self._thread.join(PATIENCE)
