"""Program with partially centred variables, whose centring is an argument: warm-up learns it, see `learn_centring`.

Centrings are arrays among the data, so that others need no compilation. A variable has a weight for each of its
elements or, if data are sharded, one for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from phalanx.distributions.location_scale import NAMES, location_scale
from phalanx.distributions.supports import kind_of
from phalanx.errors.message_text import first_few
from phalanx.errors.names import hint
from phalanx.inputs.arguments import ADDED, Arguments, by_keyword
from phalanx.jaxprs.dependence import NOWHERE, varying_axes
from phalanx.language.handlers import under, with_keyword
from phalanx.language.messages import Forward
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program
from phalanx.mesh.processes import to_devices
from phalanx.mesh.specs import PyTree
from phalanx.programs.traced_program import TracedProgram
from phalanx.programs.unconstrained import run_unconstrained

if TYPE_CHECKING:
    from jaxtyping import Float

CENTRING = f"{ADDED}centring"
"""Argument of the program: the centring by variable."""

FIRST = 0.5
"""Weight of each element before any is learned: between the two, one of which may be far worse than the other."""

NOTHING_TO_CENTRE = (
    "centring: no variable has a location or scale that depends on another latent variable; the model stays as it is."
)
"""Line of a run whose model has nothing to centre."""

LATENT = frozenset({"latent"})
"""Mark of values that depend on a latent variable."""

Centrings = Mapping[str, Any]
"""By variable the weight and the logarithm of the unit, `(2, *shape)`, or `(2,)` for all elements."""


class PartlyCentredProgram(NamedTuple):
    """A program with partially centred variables, its data, and lines to show."""

    program: Program
    data: Any
    said: tuple[str, ...] = ()


class Residuals(NamedTuple):
    """Value of a variable minus its location, the location, and the logarithm of the scale, `(..., *shape)`."""

    residual: Any
    location: Any
    log_scale: Any

    def position(self, centring: Float[np.ndarray, "two *shape"]) -> Float[np.ndarray, "draw *shape"]:
        """Return the partially centred position of host arrays."""
        weight, unit = centring.astype(np.float64)  # the factor alone may exceed the largest float32
        with np.errstate(over="ignore"):
            return weight * self.location + np.exp((weight - 1) * (self.log_scale - unit)) * self.residual


def find_sites(whole: TracedProgram, centring: str | Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the variables to be partially centred, by name.

    They are the latent variables of location-scale families with a location or scale that depends on other latent
    variables; all of them for "auto", else those named.

    Raises:
        ValueError: when a name is not such a variable; the message says why.
    """
    sites: dict[str, Any] = {}

    def parameters(position: PyTree, arrays: PyTree) -> PyTree:
        run = run_unconstrained(whole.program, position, whole.layout.join(arrays))
        priors = {name: location_scale(run.variables[name].distribution) for name in position}
        sites.update({name: run.variables[name].distribution for name in position})
        return {name: (of.location, of.scale, of.factor) for name, of in priors.items() if of is not None}

    program, shapes = jax.make_jaxpr(parameters, axis_env=whole.axis_env, return_shape=True)(
        whole.position, whole.shapes
    )
    inputs = [LATENT] * len(jax.tree.leaves(whole.position)) + [NOWHERE] * len(whole.shapes)
    depends = jax.tree.unflatten(jax.tree.structure(shapes), varying_axes(program, inputs))
    movable = [name for name, of in depends.items() if any(filter(None, of)) and whole.position[name].size]
    if centring != "auto":
        for name in centring:
            if name not in movable:
                raise ValueError(_refusal(name, whole, sites, depends, movable))
        movable = [name for name in movable if name in centring]
    return {name: whole.position[name].shape for name in movable}


def partly_centred(
    model: Program, data: object, centring: str | Sequence[str], whole: TracedProgram, mesh: Mesh
) -> PartlyCentredProgram:
    """Return the model with partially centred variables, and its data; the model itself if it has nothing to centre.

    Args:
        model: a program.
        data: its keyword arguments.
        centring: "auto", or names of variables.
        whole: the program's trace.
        mesh: the devices.
    """
    sites = find_sites(whole, centring)
    if not sites:
        return PartlyCentredProgram(model, data, (NOTHING_TO_CENTRE,))
    return PartlyCentredProgram(*with_centring(model, data, sites, mesh))


def with_centring(
    model: Program, data: object, sites: Mapping[str, tuple[int, ...]], mesh: Mesh
) -> tuple[Program, Any]:
    """Return the program with an argument `CENTRING`, and its data; without the argument it is the model itself."""
    by_element = math.prod(mesh.shape.values()) == mesh.shape["chain"]
    first = {name: _first(shape if by_element else ()) for name, shape in sites.items()}

    @wraps(model)
    def run(*args: PyTree, **kwargs: PyTree) -> PyTree:
        centring = kwargs.pop(CENTRING, None) or {}

        def mark(variable: RandomVariable, forward: Forward) -> RandomVariable:
            return forward(replace(variable, centring=centring.get(variable.name)))

        return under(model, mark)(*args, **kwargs)

    program = with_keyword(run, model, CENTRING, first_centring=first)
    return program, centred_first(program, data)


def first_centring(program: Program) -> Centrings:
    """Return the centring of a program before any is learned; empty without partially centred variables."""
    return getattr(program, "first_centring", {})


def centred_first(program: Program, data: object) -> Any:
    """Return data of a program with its first centring, if it has partially centred variables."""
    first = first_centring(program)
    return {**by_keyword(program, data), CENTRING: first} if first else data


def place_centring(arguments: Arguments, arrays: Sequence[Array], centring: Centrings, mesh: Mesh) -> tuple[Array, ...]:
    """Return the arrays of a run's data with this centring; unchanged without partially centred variables."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    kept_centring = {
        f"{CENTRING}[{name!r}]": to_devices(np.asarray(of_one, np.float32), everywhere)
        for name, of_one in centring.items()
    }
    return tuple(kept_centring.get(name, array) for name, array in zip(arguments.names, arrays, strict=True))


def residuals_of(variables: Mapping[str, RandomVariable]) -> dict[str, Residuals]:
    """Return the residuals of the partially centred variables among those of a program."""
    residuals: dict[str, Residuals] = {}
    for name, variable in variables.items():
        prior = None if variable.centring is None or not variable.is_latent else location_scale(variable.distribution)
        if prior is None:
            continue
        location = prior.location if prior.factor is None else variable.value - variable.residual
        residual = variable.residual
        shape = jnp.shape(variable.residual)
        log_scale = jnp.broadcast_to(jnp.log(prior.scale), shape)
        residuals[name] = Residuals(residual, jnp.broadcast_to(location, shape), log_scale)
    return residuals


def log_jacobians(variables: Mapping[str, RandomVariable]) -> dict[str, Array]:
    """Return for each partially centred variable the log determinant of its value by its position, elementwise."""
    return {
        name: (1 - variables[name].centring[0]) * (residuals.log_scale - variables[name].centring[1])
        for name, residuals in residuals_of(variables).items()
    }


def recentred(
    residuals: Mapping[str, Residuals], centring: Centrings, dtype: DTypeLike
) -> dict[str, Float[np.ndarray, "row *shape"]]:
    """Return the positions of partially centred variables by name, for another centring."""
    return {name: of.position(centring[name]).astype(dtype) for name, of in residuals.items()}


def _first(shape: tuple[int, ...]) -> Float[np.ndarray, "two *shape"]:
    return np.stack([np.full(shape, FIRST, np.float32), np.zeros(shape, np.float32)])


def _refusal(
    name: str, whole: TracedProgram, sites: Mapping[str, Any], depends: Mapping[str, Any], movable: Sequence[str]
) -> str:
    """Return why a variable cannot be partially centred."""
    advice = f"This model's are {first_few(list(map(repr, movable)))}." if movable else "This model has none."
    if name not in sites:
        if name in whole.variables:
            return f"centring: {name!r} is not latent, so that it has no position to choose. {advice}"
        return f"centring: the model has no variable {name!r}.{hint(name, sites)} {advice}"
    kind = kind_of(sites[name])
    if kind == "LatentEntries":
        return f"centring: {name!r} are imputed entries, which stay as they are. {advice}"
    if name not in depends:
        return (
            f"centring: variable {name!r} is {kind}, and no location and scale of it are known; those of {NAMES} are. "
            f"{advice}"
        )
    return (
        f"centring: the location and scale of variable {name!r} ({kind}) are the same in every draw, since they depend "
        f"on data and constants alone; every centring of it is as good as another. Leave it out. {advice}"
    )
