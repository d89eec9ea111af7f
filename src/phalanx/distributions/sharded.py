"""`Sharded`: one distribution, a piece on every device, for hand-written SPMD code.

`phx.mcmc` does not need it: there the data determine the sharded variables. Use it where you call `shard_map` yourself,
or `phx.spmd`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax, random
from jax.typing import ArrayLike
from numpyro.distributions import Distribution

from phalanx.distributions.precise import precise
from phalanx.distributions.supports import support_of
from phalanx.mesh.compatibility.jax_internals import tracked_axes


class Sharded(Distribution):
    r"""A distribution whose value is sharded over mesh axes, each device holding an independent piece.

    $\log p(x) = \sum_{d} \log p(x_d)$ over the devices $d$ along `axis`, equal on all of them. Its gradient with
    respect to the value is the local piece's; with respect to a global parameter, the sum over all devices.

    Args:
        distribution: the distribution of one device's piece.
        axis: the mesh axis, or several. `Sharded(Sharded(d, "i"), "j")` is sharded over both.

    Raises:
        ValueError: when `axis` is None, or an axis is named twice.
        RuntimeError: when used where JAX does not track which values differ from device to device.

    Example:
        >>> import jax, numpyro.distributions as dist, phalanx as phx
        >>> mesh = phx.make_mesh(chain=1)
        >>> draw = lambda key: phx.Sharded(dist.Normal(0.0, 1.0), "data").sample(key)
        >>> phx.spmd(draw, mesh, in_axes=None, out_axes="data")(jax.random.key(0)).shape
        (1,)
    """

    def __init__(self, distribution: Distribution, axis: str | Sequence[str] | None, *, validate_args=None):
        if axis is None:
            raise ValueError("Sharded: axis is None; name the mesh axis, or axes, that the value is sharded over.")
        axes = (axis,) if isinstance(axis, str) else tuple(axis)
        inner = distribution.axes if isinstance(distribution, Sharded) else ()
        self.distribution = distribution.distribution if isinstance(distribution, Sharded) else distribution
        self.axes = (*inner, *axes)
        if len(set(self.axes)) != len(self.axes):
            raise ValueError(f"Sharded: an axis is named more than once in {list(self.axes)}.")
        super().__init__(self.distribution.batch_shape, self.distribution.event_shape, validate_args=validate_args)

    @property
    def support(self):  # pyright: ignore[reportIncompatibleVariableOverride]  # numpyro declares an attribute
        """Support of one device's piece."""
        return support_of(self.distribution)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Draw a piece per device from one key, different on every device."""
        for axis in self.axes:
            self._check_types(axis)
            key = random.fold_in(key, lax.axis_index(axis))
        return jnp.asarray(self.distribution.sample(key, sample_shape))

    def log_prob(self, value: ArrayLike, intermediates=None) -> Array:
        """Return the log density of the whole, equal on every device along the axes."""
        for axis in self.axes:
            self._check_types(axis)
        log_prob = jnp.asarray(precise(self.distribution).log_prob(value))
        return lax.psum(log_prob, self.axes) if self.axes else log_prob

    @staticmethod
    def _check_types(axis: str) -> None:
        try:
            index = lax.axis_index(axis)
        except NameError:
            raise RuntimeError(
                f"Sharded over {axis!r}: there is no mesh axis of this name here. Call it inside phx.spmd or "
                f"jax.shard_map over a mesh with that axis."
            ) from None
        varying = tracked_axes(index)
        if axis not in varying:
            raise RuntimeError(
                f"Sharded over {axis!r}: JAX does not track here which values differ from device to device, and "
                f"gradients through the sum over devices would be wrong. Use phx.spmd, or jax.shard_map with its "
                f"default check_vma=True, instead of pmap, vmap or an unchecked shard_map."
            )
