"""Comparison of a log density on a mesh with that on one device, at the initial position of the first chain.

The rules of placement are tested on many programs, but not on the user's. Data that fit on one device make a test of
his own program cheap: its value and gradient there, of all rows, must be those of the mesh but for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import Array

from phalanx.density.target import Target
from phalanx.kernels.protocol.kernel import Point
from phalanx.mesh.compatibility.workarounds import VARIABLE, Workaround
from phalanx.mesh.processes import to_host
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Float64

MOST_BYTES = 64 * 2**20
"""Size of the data up to which they are compared on one device."""

CLOSE = 1e-3
"""Difference between two ways to add up rows, relative to the largest entry, that counts as rounding."""

STEP = 1e-6
"""Relative change of a position whose effect on the results counts as rounding, too."""


def check_on_one_device(target: Target, arrays: Sequence[Array], at: Point) -> None:
    """Raise if the log density or its gradient on the mesh differs from that on one device, at the first chain's point.

    Args:
        target: the target on the mesh. One whose data are large, or of minibatches, is not compared.
        arrays: its data on the devices.
        at: the chains' positions, with the log density and its gradient.
    """
    is_on = Workaround.ONE_DEVICE_CHECK.is_on and target.minibatch is None
    if not is_on or sum(array.nbytes for array in arrays) > MOST_BYTES:
        return
    first = jax.tree.map(lambda part: to_host(part[..., :1]).T, at)
    position = {name: values[0] for name, values in first.position.by_variable().items()}
    there = {"": first.log_density.in_double()[0]}
    there |= {name: values[0] for name, values in first.gradient.by_variable().items()}
    here, nearby = _on_one_device(target, arrays, position)
    for name, value in there.items():
        _compare(name, np.asarray(value, np.float64), here[name], nearby[name])


def _on_one_device(
    target: Target, arrays: Sequence[Array], position: Mapping[str, np.ndarray]
) -> list[dict[str, Float64[np.ndarray, "..."]]]:
    """Return the log density, named by the empty word, and its gradient: at a position, and at one close to it."""
    whole = [s.trim(to_host(array)) for s, array in zip(target.arguments.shardings, arrays, strict=True)]
    density = replace(target.on_device([]), sites=target.sites.on_one_device)

    @jax.jit
    def evaluate(position: Mapping[str, Array], arrays: Sequence[Array]) -> tuple[Total, Mapping[str, Array]]:
        return target.alone(lambda: replace(density, arrays=arrays).value_and_grad(position))

    def results(position: Mapping[str, np.ndarray]) -> dict[str, Float64[np.ndarray, "..."]]:
        total, gradient = evaluate(position, whole)
        slopes = {name: np.asarray(values, np.float64) for name, values in gradient.items()}
        return {"": np.asarray(total.in_double()), **slopes}

    close = {name: (values * (1 + STEP)).astype(values.dtype) for name, values in position.items()}
    return [results(position), results(close)]


def _compare(
    name: str,
    there: Float64[np.ndarray, "*shape"],
    here: Float64[np.ndarray, "*shape"],
    nearby: Float64[np.ndarray, "*shape"],
) -> None:
    """Raise if results on the mesh and on one device differ, or have NaN at other places."""
    with np.errstate(invalid="ignore"):
        scale = np.max(np.abs(here), initial=0.0, where=np.isfinite(here))
        rounding = np.nan_to_num(np.abs(nearby - here), nan=0.0, posinf=0.0, neginf=0.0)
        is_close = np.abs(there - here) <= CLOSE * scale + CLOSE + rounding
    is_equal = is_close | (here == there) | (np.isnan(here) & np.isnan(there))
    if is_equal.all():
        return
    entry = np.unravel_index(np.argmin(is_equal), is_equal.shape)
    what = f"the derivative by {name!r}" if name else "the log density"
    at = f" at {list(map(int, entry))}" if entry else ""
    raise ValueError(
        f"At the initial position of the first chain {what}{at} is {there[entry]:.8g} on the mesh, and "
        f"{here[entry]:.8g} on one device, so draws on the mesh would be wrong. This is a fault of Phalanx: please "
        f"report the model. Run it on data that are not sharded; or, if you know that the difference is rounding, set "
        f"{VARIABLE}={Workaround.ONE_DEVICE_CHECK.value} before Python starts."
    )
