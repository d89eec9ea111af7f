"""What a program reads from NumPy's arrays is what is in them when it is traced, also after they were changed in place.

Without 64 bits JAX reads a `float64` or `int64` array from a copy of 32 bits. It finds the copy by which array it is
of, and as long as anything holds it: a trace that was kept, say. Once the array is changed in place, every later trace
reads what was in it before. (An array of 32 bits is not copied, and read as it is.) The copies live in JAX's compiled
part and cannot be cleared; but what makes them can be given to JAX, and this one looks whether a copy still says what
its array does.

It holds for all that JAX traces in this process. What JAX does not trace again, such as a function within the model
that is jitted once and for all, goes on with the copy it had: so it does without Phalanx.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import jax
import numpy as np
from jax.interpreters import xla

from phalanx.mesh.workarounds import Workaround

_READ: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""How arrays were last read, by their identity: a program that reads one twice has it as one constant."""


def read_arrays_anew() -> None:
    """Have JAX read NumPy's arrays as they are whenever it traces; without effect where that is turned off."""
    if not Workaround.FRESH_CONSTANTS.is_on:
        return
    try:
        from jax._src.literals import TypedNdArray  # the only type of which JAX takes a constant on the host
    except ImportError:  # of another JAX: the test that this is needed says so
        return

    def read(array: np.ndarray) -> Any:
        now = np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))
        before = _READ.get(id(array))
        if before is None or not _alike(np.asarray(before), now):
            before = _READ[id(array)] = TypedNdArray(now)
        return before

    xla.canonicalize_dtype_handlers[np.ndarray] = read


def _alike(before: np.ndarray, now: np.ndarray) -> bool:
    """Whether two arrays are the same memory, or have the same bits."""
    if before.__array_interface__ == now.__array_interface__:
        return True
    if (before.dtype, before.shape) != (now.dtype, now.shape):
        return False
    return np.array_equal(_bits(before), _bits(now))


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
