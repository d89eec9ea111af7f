"""Thinning: of each lane every `thin`-th draw is kept, and what the others did is added to it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array


class SinceKept(NamedTuple):
    """Draws of each lane since the last one kept: how many, and what is added up over them."""

    draws: Any
    num_steps: Any
    diverging: Any

    @classmethod
    def none(cls, count: int) -> SinceKept:
        """Of `count` lanes that have just kept one."""
        return cls(jnp.zeros(count, jnp.int32), jnp.zeros(count, jnp.int32), jnp.zeros(count, bool))

    def after(self, done: Array, info: Any) -> SinceKept:
        """With the draws of the lanes that are `done` with one."""
        return SinceKept(
            self.draws + done,
            self.num_steps + jnp.where(done, info.num_steps, 0),
            self.diverging | done & info.diverging,
        )

    def restarted(self, kept: Array) -> SinceKept:
        """From the draws on that are `kept`."""
        return SinceKept(*(jnp.where(kept, jnp.zeros_like(value), value) for value in self))
