"""`maximize`: the values of greatest density, for who wants no posterior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.sharding import Mesh

from phalanx.errors.words import first_few
from phalanx.mesh.keys import check_seed
from phalanx.programs.arguments import split_arguments
from phalanx.programs.parameters import arrays_of
from phalanx.programs.target import choose_mesh
from phalanx.programs.tracing import Program
from phalanx.run import checks as run_checks
from phalanx.variational import checks
from phalanx.variational.ascent import climb_to_top
from phalanx.variational.compiled import Compiler
from phalanx.variational.data_checks import DataChecks
from phalanx.variational.family import FamilyPair, Start, flat
from phalanx.variational.guides import laplace
from phalanx.variational.problem import Problem
from phalanx.variational.summits import FEW, PUSHED, Ground, falls_around, longest_of

MOST = 4096
"""Coordinates of which the Hessian is looked at."""


class Maximum(NamedTuple):
    """The values of greatest density.

    Attributes:
        values: of the latent variables, and of deterministic ones.
        log_density: of the latent variables' values and the data under the model.
        at_bounds: coordinates of the unconstrained scale, such as "scale" or "p[1]", that lie at infinity there: the
            maximum is on the edge of the variables' support.
    """

    values: dict[str, np.ndarray]
    log_density: float
    at_bounds: tuple[str, ...] = ()


@run_checks.data_in_one_dict
def maximize(
    model: Program,
    data: Mapping[str, Any] | None = None,
    *,
    mesh: Mesh | None = None,
    init: Mapping[str, Any] | None = None,
    seed: int = 0,
    matmul_precision: str = "float32",
) -> Maximum:
    r"""Find the values of the latent variables that are most probable: $\arg\max_x p(x, \text{data})$.

    L-BFGS climbs from the most probable of a few random places, on the unconstrained scale, and Newton's method
    follows. What is maximised is the density of the variables as the model writes them, without the Jacobian of any
    transform.

    The result is a local maximum: the density falls in every direction around it. It may be a kink, as at the median of
    Laplace variables, or lie on the edge of a support, as the maximum of a HalfNormal at zero; `at_bounds` then names
    the coordinates. Where the density only approaches its least upper bound far out, or has none, there is no maximum.

    Args:
        model: a program whose keyword arguments are the data.
        data: the keyword arguments, as for `phx.mcmc`.
        mesh: the devices; by default those the data were placed on, or one.
        init: values to begin from, by variable; those left out begin at random.
        seed: of the random places.
        matmul_precision: precision of matrix products.

    Returns:
        The values, and the log density there.

    Raises:
        ValueError: when there is no maximum where the climb ended, as where the scale of a hierarchy goes to zero, or
            coefficients run away because classes can be separated; when a value does not fit its variable, or the model
            has no latent variable.

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
    check_seed(seed)
    run_checks.check_precision(matmul_precision)
    run_checks.check_mesh_type(mesh)
    checks.check_values_given(init, "maximize")
    arguments = split_arguments(model, {} if data is None else data)
    run_checks.check_not_traced(data)
    checks.check_one_process("maximize")
    problem = Problem(model, arguments, choose_mesh(arguments, mesh))
    pair = FamilyPair(problem, laplace())
    pair.check()
    problem.check_finite()
    DataChecks(pair, Compiler()).check_now(problem.arguments)
    if pair.of_model:
        raise ValueError(
            f"maximize: the model has parameters, {', '.join(map(repr, pair.of_model))}, whose values are learned by "
            f"phx.fit. Make them variables, or fix them with phx.substitute."
        )
    if (size := sum(math.prod(latent.unconstrained_shape) for latent in pair.latents)) > MOST:
        raise ValueError(
            f"maximize: the model has {size:,} coordinates; of more than {MOST:,} the Hessian, which tells whether "
            f"there is a maximum, is too large. Learn a guide, such as phx.guides.mean_field(), or use phx.mcmc."
        )
    names = [latent.name for latent in pair.latents]
    checks.check_init(dict(init or {}), names, pair.latents)
    given = {name: arrays_of(name, value) for name, value in (init or {}).items()}
    arrays = problem.place_arrays()
    given_to, compiler = (np.uint32(seed), arrays, given), Compiler(matmul_precision)
    compiled = compiler(lambda *traced: _highest(pair, *traced), *given_to, rarely=True)
    vector, values, height, reached, misfits = jax.tree.map(np.asarray, compiled(*given_to))
    for name, bad in misfits.items():
        if bad:
            raise ValueError(pair.misfit(name))
    if reached:
        return Maximum(dict(values), float(height))
    return _edge_or_kink(Ground(pair, compiler, arrays), vector)


def _highest(pair: FamilyPair, seed: Array, arrays: Any, given: Any) -> tuple[Any, ...]:
    """Position, values, their log density, whether it is a maximum, and which of the values given do not fit."""

    def find() -> tuple[Any, ...]:
        data = pair.problem.data(arrays)
        start = Start(pair.latents, pair.problem.model, data)
        position, misfits = start.best(random.key(seed), {**(pair.problem.start or {}), **given})
        log_density = start.log_density(position, jacobian=False)
        vector, back = flat(position)
        top = climb_to_top(log_density, vector)
        values, height = pair.problem.at_position({}, back(top.position), data).values(), log_density(top.position)
        is_top = top.reached & jnp.isfinite(height) & falls_around(log_density, top, height, longest_of(pair))
        return top.position, values, height, is_top, misfits

    return pair.problem.alone(find)


def _edge_or_kink(ground: Ground, vector: np.ndarray) -> Maximum:
    """The maximum where a smooth one was not reached, or a refusal that says what happened."""
    begun = ground.height(vector)
    failed = f"maximize: there is no maximum where the climb ended, at a log density of {begun:,.6g}"
    advice = "Give init=, another parameterisation, or ask for the posterior, with phx.mcmc."
    if len(vector) > FEW or not math.isfinite(begun):
        raise ValueError(f"{failed}: it rises still, or is not finite. {advice}")
    vector = ground.polished(vector)
    signs = ground.flat_directions(vector)
    if far := ground.runaway(vector, signs):
        raise ValueError(
            f"{failed}: it does not fall however far {first_few(far, str)} runs away, as coefficients do where classes "
            f"can be separated. Give a prior that falls, bounds, or ask for the posterior, with phx.mcmc."
        )
    pushed = vector + PUSHED * signs
    values, height = ground.values(pushed), ground.height(pushed)
    edges = ground.at_edges(vector, signs)
    if edges or not ground.is_top(pushed, signs):
        names = first_few(edges or ground.rising(vector), str)
        raise ValueError(
            f"{failed}: it rises still, most along {names}. There may be none, as where the scale of a hierarchy goes "
            f"to zero. {advice}"
        )
    names = ground.labels()
    return Maximum(values, height, tuple(names[i] for i in np.flatnonzero(signs)))
