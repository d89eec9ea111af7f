"""Transforms that find an event's image and the log determinant together, in one pass through their network."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax import Array
from jax.extend.core import get_opaque_trace_state
from numpyro.distributions.transforms import Transform


class Way(NamedTuple):
    """A way that was gone, in either direction, and within which trace."""

    x: Array
    y: Array
    log_det: Array
    trace: Any


class BothAtOnce(Transform):
    """A transform of which `forth` and `back` say the log determinant beside.

    A density asks for an event's inverse, and then for the determinant there. The network would be gone through twice,
    its gradient too, and devices would add up two gradients of its weights. So the last way gone is remembered; within
    another trace, as that of a compiled function that closes over an event, it is of no use.
    """

    _way: Way | None = None

    def forth(self, x: Array) -> tuple[Array, Array]:
        """Forward, and the log determinant."""
        raise NotImplementedError

    def back(self, y: Array) -> tuple[Array, Array]:
        """The inverse, and the log determinant of the way forward."""
        raise NotImplementedError

    def log_det(self, x: Array, y: Array) -> Array:
        """The log determinant, where neither direction was gone before."""
        return self.forth(x)[1]

    def __call__(self, x: Array) -> Array:
        """Forward."""
        return self.call_with_intermediates(x)[0]

    def call_with_intermediates(self, x: Array) -> tuple[Array, Array]:
        """Forward, and the log determinant."""
        y, log_det = self.forth(x)
        return self._remember(x, y, log_det).y, log_det

    def _inverse(self, y: Array) -> Array:
        x, log_det = self.back(y)
        return self._remember(x, y, log_det).x

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: Any = None) -> Array:
        """Of the shape of the batch."""
        if intermediates is not None:
            return intermediates
        way = self._way
        if way is not None and (x is way.x or y is way.y) and get_opaque_trace_state() == way.trace:
            return way.log_det
        return self.log_det(x, y)

    def _remember(self, x: Array, y: Array, log_det: Array) -> Way:
        way = Way(x, y, log_det, get_opaque_trace_state())
        # an array of NumPy may have other numbers when it is asked about next
        self._way = way if isinstance(x, Array) and isinstance(y, Array) else None
        return way
