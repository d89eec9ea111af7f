"""A memory of what was used last, by what tells it from others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """The values that were asked for or kept last; what was not used for longest is forgotten.

    Args:
        most: values remembered.
    """

    def __init__(self, most: int):
        self._most = most
        self._known: OrderedDict[Hashable, Value] = OrderedDict()

    def look_up(self, key: Hashable | None) -> Value | None:
        """What is known by this key; nothing is by None, which tells nothing from anything else."""
        if key is None or key not in self._known:
            return None
        self._known.move_to_end(key)
        return self._known[key]

    def keep(self, key: Hashable | None, value: Value) -> None:
        """Remember a value, unless its key is None."""
        if key is None:
            return
        self._known[key] = value
        self._known.move_to_end(key)
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def last(self) -> tuple[Hashable, Value]:
        """The one used last, with its key."""
        return next(reversed(self._known.items()))

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
