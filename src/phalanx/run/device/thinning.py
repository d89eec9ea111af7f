"""Thinning: every `thin`-th draw of a lane is kept, with the totals of the draws since the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Bool


class SinceKept(NamedTuple):
    """Totals of each lane since its last kept draw: number of draws, evaluations, and true if one diverged."""

    draws: Any
    num_steps: Any
    diverging: Any

    @classmethod
    def none(cls, count: int) -> SinceKept:
        """Return the totals of `count` lanes that just kept a draw."""
        return cls(jnp.zeros(count, jnp.int32), jnp.zeros(count, jnp.int32), jnp.zeros(count, bool))

    def after(self, done: Bool[Array, "lanes"], info: PyTree) -> SinceKept:
        """Return the totals after the draws of the lanes that are `done`."""
        return SinceKept(
            self.draws + done,
            self.num_steps + jnp.where(done, info.num_steps, 0),
            self.diverging | done & info.diverging,
        )

    def restarted(self, kept: Bool[Array, "lanes"]) -> SinceKept:
        """Return the totals with zeros for lanes that `kept` a draw."""
        return SinceKept(*(jnp.where(kept, jnp.zeros_like(value), value) for value in self))
