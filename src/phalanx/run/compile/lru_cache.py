"""LRU cache for any number of threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LRUCache(Generic[Value]):
    """LRU cache.

    Args:
        most: maximal number of values.
    """

    def __init__(self, most: int):
        self._most, self._lock = most, Lock()
        self._known: OrderedDict[Hashable, Value] = OrderedDict()

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
            while len(self._known) > self._most:
                self._known.popitem(last=False)

    def last(self) -> tuple[Hashable, Value]:
        """Return the value used last, with its key."""
        with self._lock:
            return next(reversed(self._known.items()))

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._known.clear()
