"""What was learned by a fit, as values, and the draws that it is used and judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from phalanx.learning.compiled import Compiler
from phalanx.posterior.record import RunRecord, Timing
from phalanx.variational.drawing import Drawing
from phalanx.variational.guides.likelihood import check_has_guide
from phalanx.variational.guides.pair import Pair
from phalanx.variational.judging.evidence import Weights
from phalanx.variational.judging.resampling import Resampled
from phalanx.variational.judging.weighed_draws import WeighedDraws
from phalanx.variational.monitoring.stream import Streamed
from phalanx.variational.monitoring.watching import Look


class Losses(NamedTuple):
    """The bound at each step, `(step,)`: NaN where a step was left out.

    Attributes:
        elbo: the mean over the particles, in nats.
        error: its Monte-Carlo standard error; NaN with a single particle.
    """

    elbo: np.ndarray
    error: np.ndarray


@dataclass(frozen=True, repr=False, eq=False)
class Fitted:
    """The record that `Fit` is made of.

    Attributes:
        params: values by parameter, averages over the last steps.
        losses: the bound at each step, with its Monte-Carlo error.
        timing: seconds of compiling and of learning (`sampling`), gradients, programs compiled.
        record: model, guide, sizes, mesh, devices, data, versions.
        unsettled: why it cannot be said that learning has ended; empty when it has.
        steps: steps made.
        failed: of these, how many were left out because their gradient was not finite.
        seen: the number of the batch that comes next, of data of `phx.batches`.
        looks: what was seen at each look of a fit that was watched (`training=`): step, seconds, losses in nats per row
            and bits per dimension.
        is_proposal: whether the guide is a proposal, of which draws are chosen (`phx.importance`).
    """

    params: dict[str, Any]
    losses: Losses
    timing: Timing
    record: RunRecord
    unsettled: str = ""
    steps: int = 0
    failed: int = 0
    seen: int = 0
    looks: tuple[Look, ...] = ()
    free: dict[str, Any] | None = field(default=None)
    pair: Pair | None = None
    arrays: tuple[Array, ...] = ()
    known: Mapping[str, Any] = field(default_factory=dict)
    is_proposal: bool = False

    @property
    def settled(self) -> bool:
        """Whether learning has ended because the guide no longer changed."""
        return not self.unsettled

    @property
    def is_streamed(self) -> bool:
        """Whether data came in batches, of which only the first is kept."""
        return self.pair is not None and isinstance(self.pair.problem.minibatch, Streamed)

    @cached_property
    def drawing(self) -> Drawing | Resampled:
        """What draws for use are made by: the guide, and of some guides the model has a say in which are taken."""
        return Resampled(self.proposals) if self.is_resampled else self.proposals

    @property
    def is_resampled(self) -> bool:
        """Whether draws are chosen by their importance weights."""
        return self.is_proposal or (self.pair is not None and self.pair.guide.traits.is_resampled)

    @cached_property
    def proposals(self) -> Drawing:
        """What the guide's own draws are made by.

        Raises:
            ValueError: when the fit was read from a file, which holds no model, or is of maximum likelihood.
        """
        check_has_guide(self.pair)
        if self.pair is None or self.free is None:
            raise ValueError(
                "This fit was read from a file, which holds no model and no guide. Go on with it, "
                "phx.fit(model, guide, data, init=fit, num_steps=0), to draw from it."
            )
        return Drawing(self.pair, self.free, self.arrays, Compiler(self.record.matmul_precision))

    @property
    def judged(self) -> tuple[Weights, dict[str, np.ndarray]]:
        """Importance weights of the draws that a verdict looks at, and those draws."""
        return self._weighed_draws.weighed()

    @cached_property
    def _weighed_draws(self) -> WeighedDraws:
        return WeighedDraws(self.proposals, tuple(self.record.latents))
