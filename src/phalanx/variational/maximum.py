"""`maximize`: the values of greatest density."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax import Array, random
from jax.sharding import Mesh

from phalanx.density.target import choose_mesh
from phalanx.errors.message_text import first_few
from phalanx.inputs.arguments import check_outcome_named, columns_left_out, split_arguments
from phalanx.inputs.dataframe_input import UserData
from phalanx.language.parameters import arrays_of
from phalanx.language.tracing import Program
from phalanx.learning.ascent import climb_to_top
from phalanx.learning.compiled import Compiler
from phalanx.learning.hessian_products import PRODUCTS, Summit, climb_many
from phalanx.run.arguments import check_arguments
from phalanx.run.checks import check_not_traced, data_in_one_dict
from phalanx.variational import checks
from phalanx.variational.data_checks import DataChecks
from phalanx.variational.guides.constructors import laplace
from phalanx.variational.guides.coordinates import flat, size_of
from phalanx.variational.guides.guide_and_model import Pair
from phalanx.variational.guides.start import ModelStart, misfit_words
from phalanx.variational.judging.maxima import (
    FEW,
    PUSHED,
    SOFTEST,
    HostLogDensity,
    is_resolved,
    is_summit,
    is_summit_of_many,
    longest_of,
)
from phalanx.variational.monitoring.recording import names_for
from phalanx.variational.problem import Problem, Values

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

MOST_COORDINATES = 4096
"""Coordinates up to which the whole Hessian is computed; beyond, products of it with vectors."""

UNCHECKED = (
    "The density of {size:,} coordinates was checked to fall along the {soft} softest directions that {products} "
    "products with the Hessian show, not along each."
)
"""Sentence about the maximum of many coordinates."""

UNRESOLVED = "The log density is too large to resolve whether it falls on all sides: only its gradient was checked."
"""Sentence about a maximum whose falls rounding hides."""


class Maximum(NamedTuple):
    """The values of greatest density.

    Attributes:
        values: values of the latent variables, and of deterministic ones.
        log_density: log density of the latent variables' values and the data under the model.
        at_bounds: coordinates of the unconstrained scale, such as "scale" or "p[1]", that are infinite: the maximum is
            on the edge of the variables' support.
        unchecked: sentences about what was not checked; empty if all was.
    """

    values: dict[str, np.ndarray]
    log_density: float
    at_bounds: tuple[str, ...] = ()
    unchecked: str = ""


@data_in_one_dict
def maximize(
    model: Program,
    data: UserData | None = None,
    *,
    mesh: Mesh | None = None,
    init: Mapping[str, Any] | None = None,
    seed: int = 0,
    matmul_precision: str = "float32",
) -> Maximum:
    r"""Find the values of the latent variables that are most probable: $\arg\max_x p(x, \text{data})$.

    L-BFGS climbs from the most probable of a few random positions, on the unconstrained scale, and Newton's method
    follows. The density is that of the variables as the model writes them, without the Jacobian of any transform.

    The result is a local maximum: the density falls in every direction around it. It may be a kink, as at the median of
    Laplace variables, or lie on the edge of a support, as the maximum of a HalfNormal at zero; `at_bounds` then names
    the coordinates. A density that only approaches its least upper bound far out, or is unbounded, has no maximum.

    If the density does not fall in every direction near by, as along the rotations of a matrix factorisation, or if
    there are more than 4,096 coordinates, products with the Hessian find the directions in which the density curves
    least; along these it must fall, perhaps far out. `unchecked` then says so. Maxima at kinks and edges are found up
    to 256 coordinates.

    Args:
        model: a program whose keyword arguments are the data.
        data: the keyword arguments, as for `phx.mcmc`.
        mesh: the devices; by default those the data were placed on, or one.
        init: values to begin from, by variable; variables left out begin at random.
        seed: seed of the random positions.
        matmul_precision: precision of matrix products.

    Returns:
        The values, and the log density there.

    Raises:
        ValueError: when the climb did not end at a maximum, as if the scale of a hierarchy goes to zero, or classes can
            be separated; when a value does not fit its variable, or the model has no latent variable.

    Example:
        >>> import numpy as np, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     rate = phx.sample("rate", dist.Gamma(2.0, 1.0))
        ...     phx.sample("y", dist.Poisson(rate), obs=y)
        >>> found = phx.maximize(model, {"y": np.array([3, 5])})
        >>> round(float(found.values["rate"]), 3)  # (2 - 1 + 8) / (1 + 2)
        3.0

    Source:
        Liu, Nocedal (1989), On the limited memory BFGS method for large scale optimization.
    """
    check_arguments(seed=seed, matmul_precision=matmul_precision, mesh=mesh)
    checks.check_values_given(init, "maximize")
    arguments = split_arguments(model, {} if data is None else data)
    check_not_traced("phx.maximize", data)
    problem = Problem(model, arguments, choose_mesh(arguments, mesh)).with_values()
    if (left_out := columns_left_out(model, data)) and not problem.whole.observes:
        check_outcome_named(model, left_out)
    problem.check_same("phx.maximize", init=sorted(init or {}), seed=seed, matmul_precision=matmul_precision)
    guide = laplace()
    checks.check_coordinates(problem, guide.name)
    problem.check_function()
    problem.check_finite()
    DataChecks(Pair(problem, guide), Compiler()).check_now(problem.arguments)
    if problem.parameters:
        raise ValueError(
            f"maximize: the model has parameters, {', '.join(map(repr, problem.parameters))}, whose values are learned "
            f"by phx.fit. Make them variables, or fix them with phx.substitute."
        )
    names = [latent.name for latent in problem.latents]
    checks.check_init(dict(init or {}), names, problem.latents)
    start_values = {name: arrays_of(name, value) for name, value in (init or {}).items()}
    arrays = problem.place_arrays()
    given_to = (np.uint32(seed), arrays, start_values)
    compiler = Compiler(matmul_precision)
    size = size_of(problem.latents)
    vector = np.zeros(0)
    log_p = np.zeros(())
    for by_products in (False, True) if size <= MOST_COORDINATES else (True,):
        f = partial(_highest, problem, by_products)
        compiled = compiler(f, *given_to, rarely=size <= MOST_COORDINATES)
        position, values, log_p, is_maximum, misfits = jax.tree.map(np.asarray, compiled(*given_to))
        for name, bad in misfits.items():
            if bad:
                raise ValueError(misfit_words(name))
        if is_maximum:
            unchecked = [UNCHECKED.format(size=size, soft=SOFTEST, products=PRODUCTS)] if by_products else []
            unchecked += [] if is_resolved(log_p) else [UNRESOLVED]
            return Maximum(dict(values), float(log_p), unchecked=" ".join(unchecked))
        vector = vector if vector.size else position
    labels = names_for(problem)["labels"]
    return _edge_or_kink(HostLogDensity(problem, compiler, arrays, labels), vector, float(log_p))


class Found(NamedTuple):
    """End of a climb: position, values, log density, whether it is a maximum, and flags of values that do not fit."""

    position: Float[Array, "coordinate"]
    values: dict[str, Array]
    log_p: Float[Array, ""]
    is_top: Bool[Array, ""]
    misfits: dict[str, Bool[Array, ""]]


def _highest(problem: Problem, by_products: bool, seed: Array, arrays: Sequence[Array], start_values: Values) -> Found:
    """Return the end of a climb, by products with the Hessian or by the whole of it."""

    def find() -> Found:
        data = problem.arguments.join(arrays)
        start = ModelStart(problem, data, random.key(seed))
        position, misfits = start.best(start.key, {**(problem.whole.start or {}), **start_values})
        log_density = start.log_density(position, jacobian=False)
        vector, back = flat(position)
        longest = longest_of(problem)
        climb = partial(climb_many, key=random.key(seed)) if by_products else climb_to_top
        top = climb(log_density, vector)
        densities = start.densities(position)
        values = problem.at_position({}, back(top.position), data).values()
        log_p = log_density(top.position)
        if isinstance(top, Summit):
            is_top = is_summit_of_many(densities, top, log_p, longest)
        else:
            is_top = is_summit(log_density, densities, top, log_p, longest)
        return Found(top.position, values, log_p, is_top, misfits)

    return problem.alone(find)


def _edge_or_kink(density: HostLogDensity, vector: Float[np.ndarray, "coordinate"], log_p: float) -> Maximum:
    """Return the maximum at an edge or a kink, or raise an error with the reason why it does not exist."""
    log_p = log_p if math.isfinite(log_p) else -math.inf
    height = log_p if len(vector) > FEW else density.log_density(vector)  # evaluates many positions at once
    reason = f"maximize: there is no maximum where the climb ended, at a log density of {height:,.6g}"
    advice = "Give init=, another parameterisation, or ask for the posterior, with phx.mcmc."
    if len(vector) > FEW or not math.isfinite(height):
        raise ValueError(f"{reason}: it still rises, or is not finite. {advice}")
    vector = density.polished(vector)
    signs = density.flat_directions(vector)
    if far := density.runaway(vector, signs):
        raise ValueError(
            f"{reason}: it does not fall however far {first_few(far, str)} runs away, as coefficients do if classes "
            f"can be separated. Give a prior that falls, bounds, or ask for the posterior, with phx.mcmc."
        )
    pushed = vector + PUSHED * signs
    values = density.values(pushed)
    log_p = density.log_density(pushed)
    edges = density.at_bounds(vector, signs)
    if edges or not density.is_top(pushed, signs):
        names = first_few(edges or density.rising(vector), str)
        raise ValueError(
            f"{reason}: it still rises, most along {names}. It may have no maximum, as if the scale of a hierarchy "
            f"goes to zero. {advice}"
        )
    names = density.coordinates
    return Maximum(values, log_p, tuple(names[i] for i in np.flatnonzero(signs)))
