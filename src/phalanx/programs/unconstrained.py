r"""Program as a function of unconstrained values: every latent variable is a transform of a real vector.

$x = T(u)$ with $T$ the bijection onto the support (`bijection_onto`), so
$\log p(u) = \log p(x) + \log |\det T'(u)|$. A support may depend on other variables; it is read as the program runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from numpyro.distributions import Unit
from numpyro.distributions.transforms import ComposeTransform, IdentityTransform, Transform

from phalanx.distributions.bijections import OntoCircle, bijection_onto
from phalanx.distributions.location_scale import LocationScale, PartlyCentred, location_scale
from phalanx.distributions.logit_density import logit_of
from phalanx.distributions.row_sums import total_of
from phalanx.distributions.sharded import Sharded
from phalanx.distributions.supports import AnyOf, entries_of_support, in_words, kind_of, support_of
from phalanx.errors.model_errors import model_errors
from phalanx.language.handlers import tape
from phalanx.language.messages import Forward, Tracer, is_term
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program, tracing
from phalanx.mesh.compatibility.numpyro_internals import unvalidated
from phalanx.mesh.total import Total

FITS = 1e-3
"""Tolerance between a value and the transform of its inverse; some transforms lose most digits to rounding."""


@dataclass(frozen=True)
class Evaluation:
    """A program evaluated at unconstrained values.

    Attributes:
        variables: every variable of the program, in order, with its value.
        log_dets: log |det T'| of each latent variable, elementwise over the batch dimensions of T; of an angle the log
            density of the radius.
        position: the unconstrained value of each latent variable.
        substituted: names of variables with a value that is not data, which count like data.
        at_position: names of latent variables whose value is their unconstrained value itself.
        log_radii: log density of the radii of angles, relative to the greatest; no value depends on a radius.
    """

    variables: dict[str, RandomVariable]
    log_dets: dict[str, Array]
    position: dict[str, Array]
    substituted: frozenset[str] = frozenset()
    at_position: frozenset[str] = frozenset()
    log_radii: dict[str, Array] = field(default_factory=dict)

    @property
    def observed(self) -> dict[str, RandomVariable]:
        """Observed variables each value of which has a density: not factors."""
        return {
            name: variable
            for name, variable in self.variables.items()
            if variable.observed and name not in self.substituted
            if variable.distribution is not None and not is_term(variable.distribution)
        }

    def terms(self) -> dict[tuple[str, str], Array]:
        """Return the terms of the log density, elementwise, by variable and part ("density" or "jacobian")."""
        out: dict[tuple[str, str], Array] = {}
        for name, variable in self.variables.items():
            if variable.distribution is not None:
                out[name, "density"] = variable.row_log_prob()
            if name in self.log_dets:
                out[name, "jacobian"] = self.log_dets[name]
        return out

    def totals(self, terms: Collection[tuple[str, str]], lanes: int) -> dict[tuple[str, str], Total]:
        """Return the sum of each term, for one of `lanes` chains that are evaluated at once.

        Raises:
            ValueError: when the variables differ from those in `terms`, the terms of the first trace.
        """
        term_names = [name for name, variable in self.variables.items() if variable.distribution is not None]
        if set(term_names) != (before := {name for name, _ in terms}):
            names = ", ".join(map(repr, sorted(before.symmetric_difference(term_names))))
            raise ValueError(_changed_model_message(f"{names} are new or missing"))
        out: dict[tuple[str, str], Total] = {}
        for name, variable in self.variables.items():
            if variable.distribution is not None:
                out[name, "density"] = variable.total_log_prob(lanes)
            if name in self.log_dets:
                out[name, "jacobian"] = total_of(self.log_dets[name])
        return out

    def log_density(self, jacobian: bool = True) -> Array:
        """Return the sum of all terms on one device, with or without the Jacobians of the transforms.

        Without them it is the density of the values if the radii of angles are 1, and less for others.
        """
        jacobians = map(jnp.sum, (self.log_dets if jacobian else self.log_radii).values())
        return sum((*(density.value for density in self.densities()), *jacobians), jnp.zeros(()))

    def densities(self) -> list[Total]:
        """Return the log density of each variable on one device; differences of these are more precise than of sums."""
        return [v.total_log_prob() for v in self.variables.values() if v.distribution is not None]

    def values(self) -> dict[str, Array]:
        """Return the constrained values of the latent variables, then the deterministic values."""
        return {name: v.value for name, v in self.variables.items() if v.is_latent or v.is_computed}

    def in_support(self) -> dict[str, Array]:
        """Return for each observed variable whether its values are in the support of its distribution."""
        inside: dict[str, Array] = {}
        for name, variable in self.variables.items():
            if not variable.observed or variable.distribution is None or isinstance(variable.distribution, Unit):
                continue
            if (support := support_of(variable.distribution)) is not None:
                inside[name] = jnp.asarray(support(variable.value))
        return inside


def run_unconstrained(
    program: Program, position: Mapping[str, Array] | None, data: Mapping[str, Any], *, any_latent: bool = False
) -> Evaluation:
    """Run `program(**data)` with each latent variable at the transform of its unconstrained value.

    Args:
        program: a program.
        position: unconstrained values by name; None means zeros, which also determines their shapes.
        data: the program's keyword arguments.
        any_latent: True if a variable without a bijection, such as a discrete one, gets a draw as its position;
            otherwise it is an error.
    """
    log_dets: dict[str, Array] = {}
    log_radii: dict[str, Array] = {}
    positions: dict[str, Array] = {}
    substituted: set[str] = set()
    at_position: set[str] = set()

    def place(variable: RandomVariable, _: Forward) -> RandomVariable:
        _refuse_sharded(variable)
        refuse_parameter(variable)
        if variable.is_given:
            substituted.update(() if variable.observed else (variable.name,))
            return _complete_variable(variable)
        if any_latent and not has_bijection(variable):
            complete = replace(variable, key=jax.random.key(0)).complete()
            positions[variable.name] = complete.value
            return complete
        transform = transform_of(variable)
        at_position.update((variable.name,) if isinstance(transform, IdentityTransform) else ())
        shape = transform.inverse_shape(_shape(variable))
        coordinates = _zeros(shape) if position is None else _coordinates_of(position, variable.name, shape)
        value = jnp.asarray(transform(coordinates))
        positions[variable.name] = coordinates
        log_dets[variable.name] = jnp.asarray(transform.log_abs_det_jacobian(coordinates, value))
        logit = logit_of(transform, coordinates)
        first = transform.parts[0] if isinstance(transform, ComposeTransform) else transform
        if isinstance(first, OntoCircle):
            log_radii[variable.name] = first.log_radius(coordinates)
        residual = first.residual(coordinates) if isinstance(first, PartlyCentred) else None
        return _with_value(replace(variable, logit=logit, residual=residual), value)

    variables = run_program(program, place, data)
    return Evaluation(variables, log_dets, positions, frozenset(substituted), frozenset(at_position), log_radii)


def run_program(program: Program, tracer: Tracer, data: Mapping[str, Any]) -> dict[str, RandomVariable]:
    """Return the variables of `program(**data)` under `tracer`."""
    # validity is checked on concrete values, see `validity`
    with unvalidated(), tracing(tracer), tape() as variables, model_errors(program, variables, data):
        program(**data)
    return variables


def to_unconstrained(program: Program, values: Mapping[str, Array], data: Mapping[str, Any]) -> dict[str, Array]:
    """Return the unconstrained values of the given constrained ones."""
    position: dict[str, Array] = {}

    def invert(variable: RandomVariable, _: Forward) -> RandomVariable:
        if variable.is_given:
            return _complete_variable(variable)
        if variable.name not in values:
            raise ValueError(f"No value was given for variable {variable.name!r}; give one for every latent variable.")
        value = jnp.asarray(values[variable.name])
        position[variable.name] = jnp.asarray(transform_of(variable).inv(value))
        return _with_value(variable, value)

    run_program(program, invert, data)
    return position


def _zeros(shape: tuple[int, ...]) -> Array:
    """Return zeros behind a barrier, so that a trace contains them as values and shows where each variable is read."""
    return lax.optimization_barrier(jnp.zeros(shape))


def at_values(
    program: Program,
    position: Mapping[str, Array],
    values: Mapping[str, Array],
    is_wanted: Mapping[str, Array],
    data: Mapping[str, Any],
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return `position` with the wanted latent variables at these values, and which of the values do not fit.

    A value fits if it is the transform of an unconstrained value, given the other variables.
    """
    results: dict[str, Array] = {}
    misfits: dict[str, Array] = {}

    def place(variable: RandomVariable, _: Forward) -> RandomVariable:
        if variable.is_given:
            return _complete_variable(variable)
        transform = transform_of(variable)
        name = variable.name
        try:
            inverse = transform.inv(values[name])
        except NotImplementedError:
            inverse = jnp.full_like(position[name], jnp.nan)
        results[name] = jnp.where(is_wanted[name], inverse, position[name])
        value = jnp.asarray(transform(results[name]))
        fits = jnp.isfinite(inverse).all() & jnp.isclose(value, values[name], rtol=FITS, atol=FITS).all()
        misfits[name] = is_wanted[name] & ~fits
        return _with_value(variable, value)

    with unvalidated(), tracing(place):
        program(**data)
    return results, misfits


def _coordinates_of(position: Mapping[str, Array], name: str, shape: tuple[int, ...]) -> Array:
    if name not in position:
        raise ValueError(
            _changed_model_message(f"variable {name!r} is new, and before there were {', '.join(map(repr, position))}")
        )
    if (before := position[name].shape) != shape:
        raise ValueError(
            _changed_model_message(f"variable {name!r} had unconstrained values of shape {before}, and has {shape}")
        )
    return position[name]


def _changed_model_message(how: str) -> str:
    return (
        f"The model is not the same each time it runs: {how}. Its variables and their shapes must depend on its "
        f"arguments alone: remove random numbers, counters and other Python state from it, and pass them as data."
    )


def _complete_variable(variable: RandomVariable) -> RandomVariable:
    """Return a variable with a value; substituted values are treated like data."""
    return replace(variable, observed=True).complete()


def _with_value(variable: RandomVariable, value: Array) -> RandomVariable:
    return replace(variable, value=value, key=None, suggested=False).complete()


def _shape(variable: RandomVariable) -> tuple[int, ...]:
    assert variable.distribution is not None
    return (*variable.distribution.batch_shape, *variable.distribution.event_shape)


def _refuse_sharded(variable: RandomVariable) -> None:
    if isinstance(variable.distribution, Sharded):
        raise ValueError(
            f"Variable {variable.name!r}: phx.Sharded is for code under phx.spmd or jax.shard_map. In a model use the "
            f"distribution itself: a variable that depends on sharded data, or has one row for each row of them, is "
            f"sharded with them; or give phx.sample(..., axis={variable.distribution.axes[0]!r})."
        )


def refuse_parameter(variable: RandomVariable) -> None:
    """Raise if a `phx.param` has no value: only `phx.fit` learns one."""
    if variable.parameter is not None and variable.value is None:
        raise ValueError(
            f"{variable.name!r} is a phx.param, which has no distribution to draw from: phx.fit learns it. To sample "
            f"the rest with its value fixed, substitute what was learned, phx.substitute(model, "
            f"{{{variable.name!r}: value}}); to infer it too, make it phx.sample({variable.name!r}, prior)."
        )


def has_bijection(variable: RandomVariable) -> bool:
    """Return whether a bijection from the real line onto a latent variable's support is known."""
    try:
        transform_of(variable)
    except ValueError:
        return False
    return True


def refuse_point(variable: RandomVariable) -> None:
    """Raise if a latent variable is at one point, which no position moves."""
    if variable.is_latent and kind_of(variable.distribution) == "Delta":
        raise ValueError(
            f"Variable {variable.name!r} is a latent Delta, which is at one point and has no density to move in. For a "
            f"computed value use phx.deterministic({variable.name!r}, value); for data obs=; for a value that is fixed "
            f"in a run phx.do."
        )


def transform_of(variable: RandomVariable) -> Transform:
    """Return the bijection from the real line onto a latent variable's support."""
    distribution = variable.distribution
    assert distribution is not None  # deterministic values have no distribution, but they are given
    kind = kind_of(distribution)
    support = support_of(distribution)
    if support is None or support.is_discrete:
        raise ValueError(
            f"Variable {variable.name!r} is discrete ({kind}), and gradient-based and random-walk kernels move "
            f"continuous positions. Sum it out of the model, phx.marginalize(model), if it has finitely many values; "
            f"or observe it with obs=."
        )
    entries = entries_of_support(support)
    try:
        bijection = bijection_onto(entries)
        return bijection if variable.centring is None else _partly_centred_transform(variable, bijection)
    except NotImplementedError as error:
        if isinstance(entries, AnyOf):
            raise ValueError(
                f"Variable {variable.name!r}: no bijection is known from the real line onto the support of {kind}: "
                f"{error}. Sample the component, phx.sample('{variable.name}_component', dist.Categorical(p)), and "
                f"each component's value under a name of its own, choose one by jnp.where, and sum the component out "
                f"with phx.marginalize(model); or observe {variable.name!r} with obs=."
            ) from None
        raise ValueError(
            f"Variable {variable.name!r}: no bijection is known from the real line onto the support of {kind}, "
            f"{in_words(support)}. Sample other variables and compute it from them, for a direction a "
            f"vector of normals divided by its norm (numpyro.handlers.reparam does so for some distributions), or "
            f"observe it with obs=."
        ) from None


def _partly_centred_transform(variable: RandomVariable, bijection: Transform) -> Transform:
    """Return the transform of a partially centred position; `bijection` is that of a centred one."""
    parts = location_scale(variable.distribution)
    assert parts is not None  # `centring.find_sites` names variables that have both
    location, scale = (jnp.broadcast_to(x, _shape(variable)) for x in parts[:2])
    factor = None if parts.factor is None else _for_each(parts.factor, location.ndim)
    transform = PartlyCentred(LocationScale(location, scale, factor), jnp.asarray(variable.centring))
    return transform if isinstance(bijection, IdentityTransform) else ComposeTransform([transform, bijection])


def _for_each(factor: Array, dims: int) -> Array:
    """Return a matrix for vectors in arrays of so many dimensions: JAX may refuse to add dimensions by itself."""
    return factor.reshape((1,) * (dims + 1 - factor.ndim) + factor.shape)
