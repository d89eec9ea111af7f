"""Checks of the arguments of a fit, and their error messages."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from phalanx.distributions.supports import kind_of
from phalanx.errors.names import hint
from phalanx.mesh.devices import CHAIN
from phalanx.programs.sites import Latent
from phalanx.programs.unconstrained import refuse_point, transform_of
from phalanx.run.init_values import check_inside_simplex
from phalanx.run.until import Until
from phalanx.store.policy import SavePolicy
from phalanx.variational.guides.coordinates import size_of
from phalanx.variational.guides.guide_and_model import Pair, alignment_of
from phalanx.variational.guides.learned import Learned, Params
from phalanx.variational.monitoring.options import Training
from phalanx.variational.objective import Objective
from phalanx.variational.problem import Problem

if TYPE_CHECKING:
    import optax

LBFGS = "lbfgs"
"""Name of the optimiser that holds its draws."""

BATCH_AND_MATCH = "batch-and-match"
"""Name of the optimiser that matches scores."""

FARTHEST = 10.0
"""Longest step that a rate may make, on the real line; an exponential overflows after nine of them."""


OF_AUTOGUIDES = {
    "AutoMultivariateNormal": "full_rank",
    "AutoLowRankMultivariateNormal": "low_rank",
    "AutoLaplaceApproximation": "laplace",
    "AutoIAFNormal": "flow",
    "AutoBNAFNormal": "flow",
    "AutoStructured": "structured",
}
"""Guides made from the model that are like those of NumPyro; of others, `mean_field`."""


def check_not_autoguide(guide: object) -> None:
    """Raise if a guide is one of NumPyro's, which only its own SVI can initialise."""
    kinds = guide.__mro__ if isinstance(guide, type) else type(guide).__mro__
    names = [kind.__name__ for kind in kinds if kind.__module__ == "numpyro.infer.autoguide"]
    if names:
        like = next((OF_AUTOGUIDES[name] for name in names if name in OF_AUTOGUIDES), "mean_field")
        raise TypeError(
            f"guide: {kinds[0].__name__} is a guide that numpyro.infer.SVI makes from a model and initialises. Use "
            f"phx.guides.{like}(), or another one of phx.guides, which phx.fit makes from the model."
        )


def check_coordinates(problem: Problem, guide: str) -> None:
    """Raise unless the model has coordinates that a guide on the real line can learn."""
    whole = problem.whole
    for variable in whole.variables.values():
        refuse_point(variable)
    for name in whole.without_bijection:
        variable = whole.variables[name]
        support = getattr(variable.distribution, "support", None)
        if support is not None and support.is_discrete:
            kind = kind_of(variable.distribution)
            raise ValueError(
                f"Variable {name!r} is discrete ({kind}), and the guide {guide} is a density of continuous variables. "
                f"Sum it out of the model, phx.marginalize(model), if it has finitely many values; or write a guide "
                f"that draws it from a {kind} with phx.param(...), and learn from all rows at once."
            )
        transform_of(variable)  # raises
    model = getattr(problem.program, "__name__", "model")
    if not any(variable.is_latent for variable in whole.variables.values()):
        raise ValueError(f"The model {model} has no latent variables to fit a guide to.")
    if not size_of(problem.latents):
        raise ValueError(f"The model {model} has no coordinates to learn: its latent variables have no free element.")


def check_particles(num_particles: int, pair: Pair) -> None:
    """Raise unless the mesh's chain axis divides the number of particles."""
    groups = pair.problem.mesh.shape[CHAIN]
    if num_particles % groups:
        if not pair.guide.traits.has_draws:
            raise ValueError(
                f"mesh: guide=None has no draws to shard over the {groups} devices along the mesh's {CHAIN!r} axis. "
                f"Use a mesh with chain=1, such as phx.make_mesh(chain=1, data={groups}), whose data axis shards rows."
            )
        more = -(-num_particles // groups) * groups
        raise ValueError(
            f"num_particles={num_particles} cannot be split evenly over {groups} devices along the mesh's {CHAIN!r} "
            f"axis; use {more}, or another mesh."
        )


def number_of(optimizer: Any) -> Any:
    """Return a rate that is a number of NumPy or JAX as a Python float; anything else as it is."""
    is_scalar = isinstance(optimizer, np.ndarray | jax.Array) and optimizer.shape == ()
    number = optimizer.item() if is_scalar else optimizer
    return float(number) if isinstance(number, Real) and not isinstance(number, bool) else number


def check_optimizer(optimizer: object) -> None:
    """Raise unless `optimizer` is an optimiser, or a rate above 0."""
    if optimizer is None or (isinstance(optimizer, str) and optimizer in (LBFGS, BATCH_AND_MATCH)):
        return
    if isinstance(optimizer, float):
        if not 0.0 < optimizer < float("inf"):
            raise ValueError(f"optimizer: a rate must be a number above 0; got {optimizer!r}.")
        if optimizer > FARTHEST:
            raise ValueError(_too_fast(optimizer))
        return
    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        optimizer_name = (
            optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", type(optimizer).__name__)
        )
        advice = f"; call it, as in optax.{optimizer_name}(1e-2)" if callable(optimizer) else ""
        raise TypeError(
            f"optimizer must be one of optax's, such as optax.adam(1e-2), a rate for the default one, such as 0.05, "
            f"{LBFGS!r} or {BATCH_AND_MATCH!r}; got {optimizer_name!r}{advice}."
        )
    if (step := _first_step(optimizer)) > FARTHEST:
        raise ValueError(_too_fast(step))


def _too_fast(step: float) -> str:
    return (
        f"optimizer: each step would move every parameter by about {step:,.4g} on the real line, whatever its gradient "
        f"is: the rate is too large. Give a lower one, such as optimizer=0.05 or optax.adam(1e-2)."
    )


def _first_step(optimizer: Any) -> float:
    """Return the length of an optimiser's first step, for gradients of any size; 0 if it needs other parameters."""

    def step(gradient: float) -> Any:
        free = {"": jax.numpy.zeros(1)}
        changes, _ = optimizer.update({"": jax.numpy.full(1, gradient)}, optimizer.init(free), free)
        return abs(changes[""][0])

    try:
        return float(min(jax.jit(lambda: (step(1.0), step(1e-3)))()))
    except Exception:  # an optimiser of certain parameters, or that needs more than gradients
        return 0.0


def check_update(optimizer: optax.GradientTransformationExtraArgs, free: Params) -> None:
    """Raise if an optimiser of optax needs more in each step than the gradient and the parameters."""
    try:
        jax.eval_shape(lambda free: optimizer.update(free, optimizer.init(free), free), free)
    except TypeError as error:
        if (match := re.search(r"missing \d+ required keyword-only arguments?: (.*)", str(error))) is None:
            return  # other errors are raised where steps are made
        raise TypeError(
            f"optimizer: phx.fit gives gradients, the optimiser's state and parameters in each step; this one needs "
            f"{match[1]} too. Use one such as optax.adam(1e-2); or, with a guide, optimizer={LBFGS!r}, a "
            f"quasi-Newton method that holds its draws and searches along lines."
        ) from None


def check_objective(objective: object) -> None:
    """Raise unless `objective` is an Objective."""
    if not isinstance(objective, Objective):
        raise TypeError(f"objective must be one of phx.guides, such as phx.guides.elbo(); got {objective!r}.")


def check_estimator(objective: Objective, scored: Sequence[str], num_particles: int) -> None:
    """Raise unless the objective can group the particles, and learn the variables."""
    if num_particles % objective.multiple:
        more = -(-num_particles // objective.multiple) * objective.multiple
        raise ValueError(
            f"num_particles={num_particles}: {objective.name} groups them by {objective.multiple}; use {more}."
        )
    if scored and not objective.scores:
        raise ValueError(
            f"Variable {scored[0]!r}: the guide's draws cannot be differentiated through, which {objective.name} "
            f"needs. Use phx.guides.elbo(), which learns such variables by the score function, sum a discrete variable "
            f"out of the model with phx.marginalize, or give it a continuous guide."
        )
    if scored and num_particles < 2:
        raise ValueError(
            f"Variable {scored[0]!r}: the guide's draws cannot be differentiated through, and it is learned by "
            f"comparing particles; use num_particles=8 or more."
        )


def check_fixed(optimizer: object, objective: Objective, pair: Pair) -> None:
    """Raise if `optimizer` holds its draws, but the bound is then not a differentiable function of the parameters."""
    if optimizer != LBFGS or not isinstance(optimizer, str):
        return
    reason = f"optimizer={LBFGS!r} holds its draws"
    by_steps = "use optax.adam(1e-2), or another of optax's"
    if scored := alignment_of(pair).scored:
        raise ValueError(
            f"Variable {scored[0]!r}: {reason}, and those of this variable cannot be differentiated through. Sum it "
            f"out of the model, give it a continuous guide, or {by_steps}."
        )
    if (minibatch := pair.problem.minibatch) is not None:
        raise ValueError(
            f"{minibatch.argument}: {reason}, so that the bound has no noise; other rows in each step would add noise. "
            f"Give all rows at once, or {by_steps}."
        )
    if not objective.is_usual:
        raise ValueError(f"objective: {reason} for the bound, phx.guides.elbo(); for {objective.name} {by_steps}.")


def check_matching(optimizer: object, objective: Objective, pair: Pair) -> None:
    """Raise if `optimizer` matches scores, but guide, data, model or objective do not allow it."""
    if optimizer != BATCH_AND_MATCH or not isinstance(optimizer, str):
        return
    matches = f"optimizer={BATCH_AND_MATCH!r} matches scores"
    by_steps = "use optax.adam(1e-2), or another of optax's"
    if not pair.guide.traits.matches_scores:
        raise ValueError(
            f"guide: {matches} of a normal with a full covariance, phx.guides.full_rank(); got {pair.guide.name}. "
            f"Use that guide, or {by_steps}."
        )
    if (minibatch := pair.problem.minibatch) is not None:
        raise ValueError(
            f"{minibatch.argument}: {matches}, and each minibatch has other ones. Give all rows at once, or {by_steps}."
        )
    if of_model := list(pair.problem.parameters):
        raise ValueError(
            f"Parameter {of_model[0]!r} of the model: {matches} of latent variables alone. Fix the parameter with "
            f"phx.substitute, or {by_steps}."
        )
    if not objective.is_usual:
        raise ValueError(f"objective: {matches}, and follows no objective; leave objective= out, or {by_steps}.")


def check_no_guide(guide: object, objective: object, optimizer: object) -> None:
    """Raise if a fit by maximum likelihood has arguments about draws from a guide."""
    if guide is not None:
        return
    if objective is not None and not (isinstance(objective, Objective) and objective.averages):
        raise ValueError(
            "objective: guide=None learns by maximum likelihood, but objectives weigh draws from a guide. Leave it out."
        )
    if isinstance(optimizer, str):
        raise ValueError(
            f"optimizer={optimizer!r} needs draws from a guide, but guide=None has no draws. Use a rate, such as 1e-3, "
            f"or one of optax's, such as optax.adam(1e-3)."
        )


def check_saves(checkpoint: SavePolicy | str | os.PathLike[str] | None, training: object) -> SavePolicy | None:
    """Return the policy of saves of a fit; None without. Raise if it is given twice."""
    if training is not None and not isinstance(training, Training):
        raise TypeError(f"training: expected phx.training(...); got {training!r}.")
    inner = None if training is None else training.checkpoint
    if checkpoint is not None and inner is not None:
        raise ValueError(
            f"checkpoint={str(checkpoint)!r}: training= has a checkpoint, {str(inner.folder)!r}, too. Give one of them."
        )
    return inner if checkpoint is None else SavePolicy.of(checkpoint)


def check_training(training: object, optimizer: object, num_steps: int, saves: bool) -> None:
    """Raise unless a fit that is watched or saved makes steps of an optimiser."""
    if training is None and not saves:
        return
    what, verb = ("training", "watched") if training is not None else ("checkpoint", "saved")
    if isinstance(optimizer, str):
        raise ValueError(f"{what}: a fit with optimizer={optimizer!r} is not {verb}; use one of optax's.")
    if num_steps == 0:
        raise ValueError(f"{what}: with num_steps=0 there are no steps to watch or save. Leave it out.")


def check_average(average: object, optimizer: object, training: object, num_steps: int) -> None:
    """Raise unless `average` is None, or a choice that the fit can follow."""
    if average is None:
        return
    if not isinstance(average, bool):
        raise TypeError(f"average: expected True, False or None; got {average!r}.")
    if isinstance(optimizer, str) and optimizer == LBFGS:
        raise ValueError(
            f"average: with optimizer={LBFGS!r} steps have no noise, and the last is returned. Leave it out."
        )
    if num_steps == 0:
        raise ValueError("average: with num_steps=0 there are no steps to average. Leave it out.")
    if average and training is not None:
        raise ValueError(
            "average: with training= the parameters are those of the best evaluation, or the last step. Leave it out."
        )


def check_steps_to_save(policy: SavePolicy | None, pair: Pair) -> None:
    """Raise if a guide that is found without steps is to be saved."""
    if policy is not None and pair.guide.traits.is_solved:
        raise ValueError(
            f"checkpoint: {pair.guide.name} is found by a climb, which is not saved; save its fit with fit.save(path)."
        )


def check_until(until: object) -> None:
    """Raise unless `until` is a condition on time, None or False: a fit makes steps, not draws."""
    if until is None or until is False:
        return
    if not isinstance(until, Until):
        raise TypeError(
            f"until: expected phx.until(seconds=...), False to make all num_steps, or None to stop when the guide no "
            f"longer changes; got {until!r}."
        )
    if until.r_hat is not None or until.ess is not None:
        raise ValueError("until: r_hat= and ess= are of draws, but a fit makes steps; give seconds= alone.")


def check_learned(learned_params: Learned, name: str) -> None:
    """Raise unless guide or model has a parameter."""
    if not learned_params.parameters:
        raise ValueError(
            f"Neither the guide {name} nor the model has a parameter to learn. Name the parameters, "
            f"as in phx.sample('x', Normal(phx.param('loc', 0.0), phx.param('scale', 1.0, positive))); or "
            f"weigh the guide's draws as they are, phx.importance(model, guide, data)."
        )


def check_solved(pair: Pair) -> None:
    """Raise if a guide that is learned without steps is given minibatches, or parameters of the model."""
    if not pair.guide.traits.is_solved:
        return
    advice = "Use a guide that is learned, such as phx.guides.full_rank()"
    if (minibatch := pair.problem.minibatch) is not None:
        raise ValueError(
            f"{minibatch.argument}: the guide {pair.guide.name} is learned without steps, from all rows. {advice}."
        )
    if of_model := list(pair.problem.parameters):
        raise ValueError(
            f"Parameter {of_model[0]!r} of the model would stay at its initial value: the guide {pair.guide.name} is "
            f"learned without steps. {advice}, or fix the value with phx.substitute."
        )


def check_values_given(init: object, what: str) -> None:
    """Raise unless initial values are a dict by name, or None."""
    if init is not None and not isinstance(init, Mapping):
        raise TypeError(f"{what}: init: expected a dict of values by variable; got {init!r}.")


def check_init(init: Mapping[str, Any], names: Sequence[str], latents: Sequence[Latent] = ()) -> None:
    """Raise if initial values have unknown names, or the wrong shape for a latent variable."""
    if unknown := [name for name in init if name not in names]:
        raise ValueError(
            f"init: there is no parameter or variable {', '.join(map(repr, unknown))}; there are "
            f"{', '.join(map(repr, names))}."
            f"{hint(unknown, names)}"
        )
    for name, value in init.items():
        for leaf in jax.tree.leaves(value):
            is_number = isinstance(leaf, int | float | np.number) or np.asarray(leaf).dtype.kind in "fiub"
            if is_number and not np.isfinite(np.asarray(leaf, float)).all():
                raise ValueError(f"init: the value of {name!r} has numbers that are not finite: {leaf!r}.")
    for latent in latents:
        shape = np.shape(init.get(latent.name, 0.0))
        last = latent.shape[len(latent.shape) - len(shape) :]
        if len(shape) > len(latent.shape) or any(
            size not in (1, length) for size, length in zip(shape, last, strict=True)
        ):
            raise ValueError(
                f"init: the value of variable {latent.name!r} has shape {shape}, and the variable {latent.shape}."
            )
    check_inside_simplex(init, latents)


def check_found(pair: Pair, init: Mapping[str, Any], num_steps: int) -> None:
    """Raise if initial values are of parameters that a guide finds itself."""
    if num_steps == 0 or not pair.guide.traits.is_solved:
        return
    if fixed_by_guide := [name for name in init if name in pair.learned.parameters]:
        raise ValueError(
            f"init: {fixed_by_guide[0]!r} is a parameter of {pair.guide.name}, which climbs and finds its own. Give "
            f"values of the model's variables, where the climb begins; or num_steps=0, to keep the parameters as they "
            f"are."
        )
