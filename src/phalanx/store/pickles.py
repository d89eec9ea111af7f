"""Pickles and deep copies of results: arrays, numbers and records, as files hold them.

A model, a mesh and compiled programs belong to the process that made them. A pickle leaves them out, like a file, and
what needs them says so. A deep copy shares them with the original.
"""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any, ClassVar

LEFT_OUT = "was read from a file or a pickle, which holds no model"
"""Reason why a result cannot do what needs its model."""


class Pickled:
    """Base of results, which are dataclasses: results that it derives when they are used are in no pickle and no copy.

    Attributes:
        of_process: fields that belong to the process, by name, with their value in a pickle.
    """

    of_process: ClassVar[dict[str, Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**{one.name: getattr(self, one.name) for one in fields(self)}, **self.of_process}  # pyright: ignore[reportArgumentType]

    def __copy__(self) -> Any:
        return self._with({one.name: getattr(self, one.name) for one in fields(self)})  # pyright: ignore[reportArgumentType]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        attributes = {name: getattr(self, name) for name in self.of_process}
        copied = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in attributes}  # pyright: ignore[reportArgumentType]
        return self._with({**attributes, **copy.deepcopy(copied, memo)})

    def _with(self, state: dict[str, Any]) -> Any:
        copied = object.__new__(type(self))
        vars(copied).update(state)
        return copied
