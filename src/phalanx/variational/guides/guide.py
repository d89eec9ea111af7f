"""The protocol of guides: distributions of a model's latent variables that learn, and what some of them can do besides.

A guide is given to `phx.fit` without a model; `Pair` holds it beside one. Its methods are traced, and are given the
latent variables of that model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jax import Array

from phalanx.diagnostics import Finding
from phalanx.language.parameters import Parameter
from phalanx.language.random_variable import RandomVariable
from phalanx.variational.guides.coordinates import Latents
from phalanx.variational.guides.learned import Params
from phalanx.variational.guides.start import Beginning, Start
from phalanx.variational.problem import Problem, Values


@dataclass(frozen=True)
class Traits:
    """Facts about a guide that decide how it is learned, and how draws from it are used.

    Attributes:
        is_linear: whether a draw is linear in its noise, which is standard normals.
        is_antithetic: whether steps draw in pairs of opposite noise, as likely as any: what is odd in it adds nothing
            to gradients. The noise of a mean is odd where the posterior is normal; that of a covariance is even, and
            half as many directions show less of it.
        is_solved: whether `begin` finds the parameters, so that no steps are made.
        is_resampled: whether draws for use are chosen by their importance weights.
        matches_scores: whether it is one normal, of parameters "loc" and "scale_tril", that scores determine.
        rate_falls: whether the rate of the default optimiser falls over the steps.
        has_draws: whether it has variables; without any, a model is fitted by maximum likelihood.
    """

    is_linear: bool = False
    is_antithetic: bool = False
    is_solved: bool = False
    is_resampled: bool = False
    matches_scores: bool = False
    rate_falls: bool = False
    has_draws: bool = True


@runtime_checkable
class Guide(Protocol):
    """A distribution of latent variables, with parameters that `phx.fit` learns.

    A class with these members is a guide, wherever it is written. It may also have those of `ByWidths`, `WithDensity`,
    `FollowsModel`, `ReadsData` or `Transport`.
    """

    @property
    def name(self) -> str:
        """How the user wrote it."""
        ...

    @property
    def traits(self) -> Traits:
        """Facts that decide how it is learned and used."""
        ...

    def parameters(self, latents: Latents) -> dict[str, Parameter]:
        """Return its parameters: constraints, and how they are laid out. `Parameter.init` is not read."""
        ...

    def begin(self, start: Start) -> Beginning:
        """Return initial values of the parameters."""
        ...

    def noise(self, key: Array, latents: Latents) -> Any:
        """Return the random numbers of a draw, or the key itself: all of a draw but the parameters."""
        ...

    def draw(self, params: Params, noise: Any, latents: Latents) -> dict[str, Array]:
        """Return a draw by variable, a differentiable function of the parameters."""
        ...

    def log_prob(self, params: Params, draw: Mapping[str, Array], latents: Latents) -> Array:
        """Return the log density of a draw."""
        ...


@runtime_checkable
class ByWidths(Protocol):
    """A guide whose parameters move by its own widths; those of others move on the real line."""

    def moved(self, params: Params, change: Params, latents: Latents) -> dict[str, Any]:
        """Return values of the parameters after a change in units of the guide's widths; the same values at zero."""
        ...


@runtime_checkable
class WithDensity(Protocol):
    """A guide whose draws have densities that take less on the way than afterwards."""

    def draw_with_density(
        self, params: Params, noise: Any, latents: Latents, held: bool
    ) -> tuple[dict[str, Array], Array] | None:
        """Return a draw and its log density, with the parameters held in it or not; None where that saves nothing."""
        ...


@runtime_checkable
class FollowsModel(Protocol):
    """A guide that depends on more of the model than its latent variables."""

    def following(self, problem: Problem) -> Guide:
        """Return the guide of this model, or raise where the two do not agree."""
        ...


class Alignment(NamedTuple):
    """What the traces of a program and of the model that it is a guide for show of each other.

    Attributes:
        parameters: those of the guide.
        scored: variables whose draws cannot be differentiated through.
        described: a line about each latent variable, in the order of the guide.
        left_out: a finding, where the guide can never draw what the model has.
    """

    parameters: Mapping[str, Parameter] = {}
    scored: Sequence[str] = ()
    described: Mapping[str, str] = {}
    left_out: Sequence[Finding] = ()


@runtime_checkable
class ReadsData(Protocol):
    """A guide that computes its distributions from the data, as programs do, and so takes any rows.

    Its draws hold values of the model's variables; those of other guides hold unconstrained ones.
    """

    @property
    def alignment(self) -> Alignment:
        """What is known of it beside the model."""
        ...

    def reading(self, data: Values) -> Guide:
        """Return the guide at these data."""
        ...

    def weighed(self, of_model: set[str], problem: Problem) -> Guide:
        """Return the guide of minibatches, whose terms of rows count for all; `of_model` names those of the model."""
        ...

    def variables(self, params: Params | None, key: Array) -> dict[str, RandomVariable]:
        """Return its random variables, drawn with this key; without parameters at the initial ones."""
        ...

    def log_score(self, params: Params, draw: Mapping[str, Array]) -> Array:
        """Return the log density of those variables of a draw that cannot be differentiated through."""
        ...


class Pushed(NamedTuple):
    """The image of noise under a transform.

    Attributes:
        position: unconstrained values by variable.
        log_det: logarithm of the determinant's absolute value.
    """

    position: dict[str, Array]
    log_det: Array


@runtime_checkable
class Transport(Protocol):
    """A guide that is a transform of standard normals."""

    def transport(self, params: Params, latents: Latents) -> Callable[[Array], Pushed]:
        """Return the transform of a vector of normals, an element for each coordinate that no device has alone.

        What does not depend on the noise is computed once, and not at every leapfrog.

        Raises:
            ValueError: when variables that live with rows of sharded data are not held apart from the others.
        """
        ...
