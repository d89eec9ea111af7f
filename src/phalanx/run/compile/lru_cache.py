"""LRU cache for any number of threads: the bound of every cache of compiled programs."""

from __future__ import annotations

import ctypes
import time
from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


TRIM_SECONDS = 1.0
"""Least seconds between two times at which memory is returned, which takes hundredths of a second."""


class LRUCache(Generic[Value]):
    """LRU cache.

    Args:
        most: maximal number of values.
        of_programs: true if values are compiled programs. Free memory is returned to the system when one is removed:
            the C library keeps what the compiler has freed, in more pieces with each program.
    """

    def __init__(self, most: int, of_programs: bool = False):
        self._most = most
        self._lock = Lock()
        self._of_programs = of_programs
        self._known: OrderedDict[Hashable, Value] = OrderedDict()
        self._returned = 0.0

    def look_up(self, key: Hashable | None) -> Value | None:
        """Return the value of a key; None without one. A key of None is never cached."""
        with self._lock:
            if key is None or key not in self._known:
                return None
            self._known.move_to_end(key)
            return self._known[key]

    def keep(self, key: Hashable | None, value: Value) -> None:
        """Cache a value, unless its key is None."""
        if key is None:
            return
        with self._lock:
            self._known[key] = value
            self._known.move_to_end(key)
            surplus = [self._known.popitem(last=False) for _ in range(len(self._known) - self._most)]
        if surplus and self._of_programs and time.monotonic() - self._returned > TRIM_SECONDS:
            surplus.clear()
            return_memory()
            self._returned = time.monotonic()

    def last(self) -> tuple[Hashable, Value]:
        """Return the value used last, with its key."""
        with self._lock:
            return next(reversed(self._known.items()))

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._known.clear()


def return_memory() -> None:
    """Return free memory to the system, if the C library can."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
