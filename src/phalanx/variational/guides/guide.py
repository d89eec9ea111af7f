"""The protocol of guides: distributions of a model's latent variables, with parameters that `phx.fit` learns.

`phx.fit` takes a guide without a model; `guide_and_model.py` combines the two. JAX traces its methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jax import Array, lax

from phalanx.language.parameters import Parameter
from phalanx.mesh.specs import PyTree
from phalanx.variational.guides.coordinates import Latents
from phalanx.variational.guides.learned import Params
from phalanx.variational.guides.start import Beginning, ModelStart
from phalanx.variational.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Facts about a guide that decide how it is learned, and how draws from it are used.

    Attributes:
        is_linear: whether a draw is linear in its noise, which is standard normals.
        is_antithetic: whether steps draw in pairs of opposite noise, which cancels odd functions of the noise in
            gradients. For a normal posterior the gradient noise of a mean is odd; that of a covariance is even, and
            larger with half as many directions.
        by_widths: whether steps change parameters in units of the guide's own widths, by `moved`; otherwise they add
            to the parameters on the real line.
        is_solved: whether `begin` finds the parameters, so that no steps are made.
        is_resampled: whether draws for use are chosen by their importance weights.
        matches_scores: whether it is one normal, of parameters "loc" and "scale_tril", that scores determine.
        rate_falls: whether the rate of the default optimiser falls over the steps.
        has_draws: whether it has variables; without any, a model is fitted by maximum likelihood.
    """

    is_linear: bool = False
    is_antithetic: bool = False
    by_widths: bool = False
    is_solved: bool = False
    is_resampled: bool = False
    matches_scores: bool = False
    rate_falls: bool = False
    has_draws: bool = True


class Pushed(NamedTuple):
    """The image of noise under a transform.

    Attributes:
        position: unconstrained values by variable.
        log_det: logarithm of the determinant's absolute value.
    """

    position: dict[str, Array]
    log_det: Array


@runtime_checkable
class Guide(Protocol):
    """A distribution of unconstrained values of the latent variables, with parameters that `phx.fit` learns.

    Derive from this class. A guide has a `name`, `parameters`, `begin`, `noise`, `draw` and `log_prob`; all else has a
    default.

    Attributes:
        name: the guide as the user wrote it.
        traits: facts that decide how it is learned and used.
    """

    name: str
    traits: Traits = Traits()

    def parameters(self, problem: Problem) -> dict[str, Parameter]:
        """Return its parameters: constraints, and how they are laid out. `Parameter.init` is not read."""
        ...

    def begin(self, start: ModelStart) -> Beginning:
        """Return initial values of the parameters, for a model with its data; see `ModelStart`."""
        ...

    def noise(self, key: Array, latents: Latents) -> PyTree:
        """Return the random numbers of a draw, or the key itself: all of a draw but the parameters."""
        ...

    def draw(self, params: Params, noise: PyTree, latents: Latents) -> dict[str, Array]:
        """Return a draw by variable, a differentiable function of the parameters."""
        ...

    def log_prob(self, params: Params, draw: Mapping[str, Array], latents: Latents) -> Array:
        """Return the log density of a draw."""
        ...

    def draw_with_density(
        self, params: Params, noise: PyTree, latents: Latents, is_constant: bool
    ) -> tuple[dict[str, Array], Array]:
        """Return a draw and its log density, for guides whose noise makes the density cheaper.

        With `is_constant` the density is a function of the draw alone: its parameters are constants.
        """
        draw = self.draw(params, noise, latents)
        return draw, self.log_prob(lax.stop_gradient(params) if is_constant else params, draw, latents)

    def moved(self, params: Params, change: Params, latents: Latents) -> dict[str, Any]:
        """Return the parameters after a change in units of the guide's widths; only called with `traits.by_widths`."""
        raise TypeError(f"the guide {self.name} has `traits.by_widths`, so it must define `moved`")

    def transport(self, params: Params, latents: Latents) -> Callable[[Array], Pushed]:
        """Return the guide as a transform of standard normals, one for each coordinate that every device holds.

        Compute here, once, all that does not depend on the noise: the transform is called at every leapfrog step.

        Raises:
            ValueError: when the guide is not a transform of standard normals, or moves local variables together with
                others.
        """
        raise ValueError(
            f"reparameterize: the guide {self.name} is not a transform of standard normals. Fit phx.guides.flow(), or "
            f"full_rank(), low_rank(), mean_field() or structured()."
        )
