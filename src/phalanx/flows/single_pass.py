"""Transforms that compute an event's image and the log determinant together, in one pass through their network."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jax import Array
from jax.extend.core import get_opaque_trace_state
from numpyro.distributions.transforms import Transform

from phalanx.mesh.specs import PyTree


class Pass(NamedTuple):
    """The events and log determinant of one pass, in either direction, and the JAX trace that it belongs to."""

    x: Array
    y: Array
    log_det: Array
    trace: Any


class SinglePassTransform(Transform):
    """Transform that implements `forward_and_log_det` and `inverse_and_log_det`.

    A density asks for an event's inverse, and then for the log determinant there: two passes through the network, two
    through its gradient, and two sums over devices of the gradient of its weights. So the last pass is remembered. It
    is not reused in another trace, such as that of a compiled function that closes over an event.
    """

    _last: Pass | None = None

    def forward_and_log_det(self, x: Array | np.ndarray) -> tuple[Array, Array]:
        """Return the image of `x`, and the log determinant."""
        raise NotImplementedError

    def inverse_and_log_det(self, y: Array | np.ndarray) -> tuple[Array, Array]:
        """Return the inverse image of `y`, and the log determinant of the forward direction there."""
        raise NotImplementedError

    def log_det(self, x: Array | np.ndarray, y: Array | np.ndarray) -> Array:
        """Return the log determinant without a remembered pass."""
        return self.forward_and_log_det(x)[1]

    def __call__(self, x: Array | np.ndarray) -> Array:
        """Return the image of `x`."""
        return self.call_with_intermediates(x)[0]

    def call_with_intermediates(self, x: Array | np.ndarray) -> tuple[Array, Array]:
        """Return the image of `x`, and the log determinant."""
        y, log_det = self.forward_and_log_det(x)
        self._remember(x, y, log_det)
        return y, log_det

    def _inverse(self, y: Array | np.ndarray) -> Array:
        x, log_det = self.inverse_and_log_det(y)
        self._remember(x, y, log_det)
        return x

    def log_abs_det_jacobian(self, x: Array | np.ndarray, y: Array | np.ndarray, intermediates: PyTree = None) -> Array:
        """Return the log determinant, of the shape of the batch."""
        if intermediates is not None:
            return intermediates
        last = self._last
        if last is not None and (x is last.x or y is last.y) and get_opaque_trace_state() == last.trace:
            return last.log_det
        return self.log_det(x, y)

    def _remember(self, x: Array | np.ndarray, y: Array | np.ndarray, log_det: Array) -> None:
        # a NumPy array is mutable: it may hold other numbers at the next call
        self._last = None
        if isinstance(x, Array) and isinstance(y, Array):
            self._last = Pass(x, y, log_det, get_opaque_trace_state())
