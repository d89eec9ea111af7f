"""Single rows of an array whose rows are sharded over devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from phalanx.mesh.space import only_rows

if TYPE_CHECKING:
    from jaxtyping import Integer, Shaped


def take_rows(
    values: Shaped[Array, "rows *row"],
    numbers: Sequence[int] | Integer[Array | np.ndarray, "wanted"],
    axis: str | Sequence[str] = "data",
) -> Shaped[Array, "wanted *row"]:
    """Return single rows of an array that is sharded over a mesh axis, replicated on all devices.

    Use it in code of your own under `phx.spmd`, where a sharded array has the rows of one device. In a model and in a
    function of `phx.reduce`, which see all rows, `values[numbers]` is the same.

    Args:
        values: the rows of this device, `(rows, ...)`.
        numbers: indices of the rows in the whole array.
        axis: the mesh axis, or axes, that the rows are sharded over.

    Returns:
        The rows, `(len(numbers), ...)`.

    Raises:
        ValueError: when a number is negative, or beyond the last row. (Traced numbers are not checked: such a row is
            zero.)

    Example:
        >>> import jax.numpy as jnp, phalanx as phx
        >>> mesh = phx.make_mesh(chain=1)
        >>> third = phx.spmd(lambda rows: phx.take_rows(rows, [2]), mesh, in_axes="data", out_axes=None)
        >>> third(jnp.arange(8.0)[None]).tolist()
        [2.0]
    """
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    rows = values.shape[0]
    count = rows * math.prod(lax.axis_size(name) for name in axes)
    if isinstance(numbers, Sequence) and not all(0 <= number < count for number in numbers):
        raise ValueError(f"phx.take_rows: rows are numbered from 0 to {count - 1}; got {list(numbers)}.")
    local = jnp.asarray(numbers) - lax.axis_index(axes) * rows
    mine = (local >= 0) & (local < rows)
    found = values[jnp.clip(local, 0, rows - 1)]
    return lax.psum(only_rows(mine, found), axes).astype(values.dtype)
