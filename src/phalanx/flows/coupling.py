"""Coupling: a part of the coordinates stays, and says how the others are moved and scaled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform

from phalanx.flows.networks import Weights, apply_dense, init_dense, shift_and_log_scale


class Coupling(Transform):
    r"""$y = x$ where `stays`, and $y = x e^{s(x_\text{stays})} + m(x_\text{stays})$ elsewhere; one pass either way.

    Args:
        weights: a pytree, from `init`, or what `network` takes; or a `phx.param` of it.
        stays: which elements of an event stay, True or False each: of the event's shape, a vector or an image.
        network: a function of weights and an event, `(..., *event)`, of which what does not stay is zero, to shift and
            log scale, of the event's shape each or side by side on a last axis of twice the length. None is the dense
            network of `init`, which sees the event as a vector.

    Raises:
        ValueError: when no element stays, or all do.

    Example:
        >>> import jax, jax.numpy as jnp, phalanx as phx
        >>> weights = phx.flows.Coupling.init(jax.random.key(0), 4)
        >>> layer = phx.flows.Coupling(weights, stays=phx.flows.halves(4))
        >>> layer(jnp.ones(4)).tolist()  # it begins as the identity
        [1.0, 1.0, 1.0, 1.0]

    Source:
        Dinh, Sohl-Dickstein, Bengio (2017), Density estimation using Real NVP.
    """

    def __init__(self, weights: Any, stays: Any, network: Callable[[Any, Array], Any] | None = None):
        stays = np.asarray(stays, bool)
        if stays.ndim == 0 or stays.all() or not stays.any():
            raise ValueError(
                f"Coupling: stays says of each element of an event whether it stays, some do and some do not; got "
                f"{stays.tolist()!r}."
            )
        self.weights, self.network = weights, network
        self.shape, self.flags = stays.shape, tuple(stays.ravel().tolist())

    @staticmethod
    def init(key: Array, size: int, hidden: Sequence[int] = (32, 32)) -> Weights:
        """Weights with which it is the identity.

        Args:
            key: a JAX key.
            size: elements of an event.
            hidden: widths of the network's layers.
        """
        return init_dense(key, size, 2 * size, hidden)

    @property
    def stays(self) -> np.ndarray:
        """Which elements of an event stay."""
        return np.array(self.flags).reshape(self.shape)

    @property
    def domain(self) -> Any:
        """Real events."""
        return constraints.independent(constraints.real, len(self.shape))

    codomain = domain

    def __call__(self, x: Array) -> Array:
        """Forward."""
        shift, log_scale = self._affine(x)
        return x * jnp.exp(log_scale) + shift

    def _inverse(self, y: Array) -> Array:
        shift, log_scale = self._affine(y)
        return (y - shift) * jnp.exp(-log_scale)

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: Any = None) -> Array:
        """Of the shape of the batch."""
        return jnp.sum(self._affine(x)[1], tuple(range(-len(self.shape), 0)))

    def tree_flatten(self) -> Any:
        """Weights are leaves."""
        fixed = {"network": self.network, "shape": self.shape, "flags": self.flags}
        return (self.weights,), (("weights",), fixed)

    def _affine(self, x: Array) -> tuple[Array, Array]:
        """Shift and log scale, zero of what stays."""
        stays = self.stays.reshape(*(1,) * (jnp.ndim(x) - len(self.shape)), *self.shape)
        seen = jnp.where(stays, x, 0.0)
        if self.network is None:
            raw = apply_dense(self.weights, seen.reshape(*seen.shape[: -len(self.shape)], -1))
            shift, log_scale = (part.reshape(seen.shape) for part in shift_and_log_scale(raw))
        else:
            raw = self.network(self.weights, seen)
            both = jnp.concatenate(raw, -1) if isinstance(raw, tuple | list) else raw
            shift, log_scale = shift_and_log_scale(both)
        return jnp.where(stays, 0.0, shift), jnp.where(stays, 0.0, log_scale)


def halves(size: int, second: bool = False) -> np.ndarray:
    """What stays in a coupling of a vector: the first half, or the second.

    Args:
        size: coordinates, two at least.
        second: whether the second half stays.
    """
    return (np.arange(size) >= (size + 1) // 2) == second


def bits(size: int) -> list[np.ndarray]:
    """What stays in each of a few couplings, so that any coordinate is told by any other in one of them.

    Two numbers differ in a bit: of each bit there are two layers, in which the ones stay and in which the zeros do.

    Args:
        size: coordinates, two at least.
    """
    numbers = np.arange(size)
    ones = [(numbers >> bit) % 2 == 1 for bit in reversed(range(max(1, (size - 1).bit_length())))]
    return [flags for one in ones for flags in (~one, one)]


def checkerboard(shape: Sequence[int], odd: bool = False) -> np.ndarray:
    """What stays in a coupling of images `(height, width, channel)`: the even pixels of a checkerboard, or the odd."""
    height, width, channels = shape
    flags = (np.add.outer(np.arange(height), np.arange(width)) % 2 == 1) == odd
    return np.broadcast_to(flags[..., None], (height, width, channels))


def channels(shape: Sequence[int], second: bool = False) -> np.ndarray:
    """What stays in a coupling of images `(height, width, channel)`: the first half of the channels, or the second."""
    return np.broadcast_to(halves(shape[-1], second), tuple(shape))
