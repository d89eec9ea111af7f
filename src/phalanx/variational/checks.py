"""What a fit refuses, and what it says then."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import jax
import numpy as np

from phalanx.errors.names import hint
from phalanx.mesh.devices import CHAIN
from phalanx.programs.shares import Latent
from phalanx.run.until import Until
from phalanx.variational.guides.learned import Learned
from phalanx.variational.guides.pair import Pair
from phalanx.variational.monitoring.options import Training
from phalanx.variational.objective import Objective

LBFGS = "lbfgs"
"""The optimizer= that holds its draws."""

BATCH_AND_MATCH = "batch-and-match"
"""The optimizer= that matches scores."""


def check_counts(num_steps: Any, num_particles: Any) -> None:
    """Refuse sizes that are not whole numbers, or too small."""
    for name, value, least in (("num_steps", num_steps, 0), ("num_particles", num_particles, 1)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
            raise ValueError(f"fit: {name} must be a whole number, at least {least}; got {value!r}.")


def check_particles(num_particles: int, pair: Pair) -> None:
    """Refuse a number of particles that the mesh's chain axis does not divide."""
    groups = pair.problem.mesh.shape[CHAIN]
    if num_particles % groups:
        if not pair.has_draws:
            raise ValueError(
                f"mesh: guide=None draws nothing that could be spread over the {groups} devices along the mesh's "
                f"{CHAIN!r} axis. Use a mesh with chain=1, such as phx.make_mesh(chain=1, data={groups}), whose data "
                f"axis takes rows."
            )
        more = -(-num_particles // groups) * groups
        raise ValueError(
            f"num_particles={num_particles} cannot be split evenly over {groups} devices along the mesh's {CHAIN!r} "
            f"axis; use {more}, or another mesh."
        )


def number_of(optimizer: Any) -> Any:
    """A rate as a number of Python's, which may be one of NumPy's or of JAX's; anything else as it is."""
    is_scalar = isinstance(optimizer, np.ndarray | jax.Array) and optimizer.shape == ()
    number = optimizer.item() if is_scalar else optimizer
    return float(number) if isinstance(number, Real) and not isinstance(number, bool) else number


def check_optimizer(optimizer: Any) -> None:
    """Refuse an optimiser that is none, and a rate that is out of range."""
    if optimizer is None or (isinstance(optimizer, str) and optimizer in (LBFGS, BATCH_AND_MATCH)):
        return
    if isinstance(optimizer, float):
        if not 0.0 < optimizer < float("inf"):
            raise ValueError(f"optimizer: a rate must be a number above 0; got {optimizer!r}.")
        return
    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        given = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", type(optimizer).__name__)
        called = f"; call it, as in optax.{given}(1e-2)" if callable(optimizer) else ""
        raise TypeError(
            f"optimizer must be one of optax's, such as optax.adam(1e-2), a rate for the default one, such as 0.05, "
            f"{LBFGS!r} or {BATCH_AND_MATCH!r}; got {given!r}{called}."
        )


def check_update(optimizer: Any, free: Any) -> None:
    """Refuse an optimiser of optax's that asks in each step for more than the gradient and the parameters."""
    try:
        jax.eval_shape(lambda free: optimizer.update(free, optimizer.init(free), free), free)
    except TypeError as error:
        if (asked := re.search(r"missing \d+ required keyword-only arguments?: (.*)", str(error))) is None:
            return  # whatever else is wrong is told where steps are made
        raise TypeError(
            f"optimizer: one of optax's is given gradients, its state and parameters in each step, and this one asks "
            f"for {asked[1]} too. Use one such as optax.adam(1e-2); or, with a guide, optimizer={LBFGS!r}, a "
            f"quasi-Newton method that holds its draws and searches along lines."
        ) from None


def check_objective(objective: Any) -> None:
    """Refuse an objective that is none."""
    if not isinstance(objective, Objective):
        raise TypeError(f"objective must be one of phx.guides, such as phx.guides.elbo(); got {objective!r}.")


def check_estimator(objective: Objective, scored: Sequence[str], num_particles: int) -> None:
    """Refuse particles that the objective cannot group, and variables that it cannot learn."""
    if num_particles % objective.multiple:
        more = -(-num_particles // objective.multiple) * objective.multiple
        raise ValueError(
            f"num_particles={num_particles}: {objective.name} takes them {objective.multiple} by "
            f"{objective.multiple}; use {more}."
        )
    if scored and not objective.scores:
        raise ValueError(
            f"Variable {scored[0]!r}: the guide's draws cannot be differentiated through, which {objective.name} "
            f"needs. Use phx.guides.elbo(), which learns such variables by the score function, sum a discrete variable "
            f"out of the model, as with numpyro.distributions.MixtureSameFamily, or give it a continuous guide."
        )
    if scored and num_particles < 2:
        raise ValueError(
            f"Variable {scored[0]!r}: the guide's draws cannot be differentiated through, and are learned by comparing "
            f"particles; use num_particles=8 or more."
        )


def check_fixed(optimizer: Any, objective: Objective, pair: Pair) -> None:
    """Refuse, of fixed draws, what is no function of the parameters that can be climbed."""
    if optimizer != LBFGS or not isinstance(optimizer, str):
        return
    held, by_steps = f"optimizer={LBFGS!r} holds its draws", "use optax.adam(1e-2), or another of optax's"
    if scored := pair.scored:
        raise ValueError(
            f"Variable {scored[0]!r}: {held}, and those of this variable cannot be differentiated through. Sum it out "
            f"of the model, give it a continuous guide, or {by_steps}."
        )
    if (minibatch := pair.problem.minibatch) is not None:
        raise ValueError(
            f"{minibatch.argument}: {held}, so that the bound has no noise; other rows in each step would bring it "
            f"back. Give all rows at once, or {by_steps}."
        )
    if not objective.is_usual:
        raise ValueError(f"objective: {held} for the bound, phx.guides.elbo(); for {objective.name} {by_steps}.")


def check_matching(optimizer: Any, objective: Objective, pair: Pair) -> None:
    """Refuse, of matching scores, what has none to be matched."""
    if optimizer != BATCH_AND_MATCH or not isinstance(optimizer, str):
        return
    matches, by_steps = f"optimizer={BATCH_AND_MATCH!r} matches scores", "use optax.adam(1e-2), or another of optax's"
    if not pair.guide.traits.matches_scores:
        raise ValueError(
            f"guide: {matches} of a normal with a full covariance, phx.guides.full_rank(); got {pair.name}. Use that "
            f"guide, or {by_steps}."
        )
    if (minibatch := pair.problem.minibatch) is not None:
        raise ValueError(
            f"{minibatch.argument}: {matches}, and those of a few rows are others. Give all rows at once, or "
            f"{by_steps}."
        )
    if of_model := pair.model_parameters():
        raise ValueError(
            f"Parameter {of_model[0]!r} of the model: {matches} of latent variables, and it is none. Fix it with "
            f"phx.substitute, or {by_steps}."
        )
    if not objective.is_usual:
        raise ValueError(f"objective: {matches}, and follows none; leave objective= out, or {by_steps}.")


def check_no_guide(guide: Any, objective: Any, optimizer: Any) -> None:
    """Refuse, of maximum likelihood, what is about draws from a guide."""
    if guide is not None:
        return
    if objective is not None and not (isinstance(objective, Objective) and objective.averages):
        raise ValueError(
            "objective: guide=None learns by maximum likelihood, and objectives weigh draws from a guide. Leave it out."
        )
    if isinstance(optimizer, str):
        raise ValueError(
            f"optimizer={optimizer!r} is about draws from a guide, and guide=None has none. Use a rate, such as 1e-3, "
            f"or one of optax's, such as optax.adam(1e-3)."
        )


def check_training(training: Any, optimizer: Any, num_steps: Any) -> None:
    """Refuse what is no training, and training of what makes no steps of an optimiser."""
    if training is None:
        return
    if not isinstance(training, Training):
        raise TypeError(f"training: expected phx.training(...); got {training!r}.")
    if isinstance(optimizer, str):
        raise ValueError(f"training: a fit with optimizer={optimizer!r} is not watched; use one of optax's.")
    if num_steps == 0:
        raise ValueError("training: with num_steps=0 there is nothing to watch, or to save. Leave it out.")


def check_until(until: Any) -> None:
    """Refuse a condition that is none, or one on draws, of which a fit has none."""
    if until is None or until is False:
        return
    if not isinstance(until, Until):
        raise TypeError(
            f"until: expected phx.until(seconds=...), False to make all num_steps, or None to stop when the guide no "
            f"longer changes; got {until!r}."
        )
    if until.r_hat is not None or until.ess is not None:
        raise ValueError("until: r_hat= and ess= are of draws, and a fit has none; give seconds= alone.")


def check_learned(learned: Learned, name: str) -> None:
    """Refuse to learn where guide and model have no parameters."""
    if not learned.parameters:
        raise ValueError(
            f"Neither the guide {name} nor the model has a parameter: there is nothing to learn. Name what is to be "
            f"learned, as in phx.sample('x', Normal(phx.param('loc', 0.0), phx.param('scale', 1.0, positive))); or "
            f"weigh the guide's draws as they are, phx.importance(model, guide, data)."
        )


def check_solved(pair: Pair) -> None:
    """Refuse what is learned by steps, of a guide that makes none."""
    if not pair.guide.traits.is_solved:
        return
    advice = "Use a guide that is learned, such as phx.guides.full_rank()"
    if (minibatch := pair.problem.minibatch) is not None:
        raise ValueError(
            f"{minibatch.argument}: the guide {pair.name} is learned by no steps, and sees all rows. {advice}."
        )
    if of_model := pair.model_parameters():
        raise ValueError(
            f"Parameter {of_model[0]!r} of the model would stay at its initial value: the guide {pair.name} is learned "
            f"by no steps. {advice}, or fix the value with phx.substitute."
        )


def check_one_process(what: str) -> None:
    """Refuse to be one of several processes: what each decides by its own clock would leave the others waiting."""
    if (count := jax.process_count()) > 1:
        raise ValueError(
            f"{what}: this is one of {count} processes that have joined, and a fit over several does not work yet. "
            f"Run it in one process that sees all devices."
        )


def check_values_given(init: Any, what: str) -> None:
    """Raise unless initial values are a dict by name, or None."""
    if init is not None and not isinstance(init, Mapping):
        raise TypeError(f"{what}: init: expected a dict of values by variable; got {init!r}.")


def check_init(init: Mapping[str, Any], known: Sequence[str], latents: Sequence[Latent] = ()) -> None:
    """Refuse initial values of what there is not, and of latent variables those of another shape."""
    if unknown := [name for name in init if name not in known]:
        raise ValueError(
            f"init: there is no {', '.join(map(repr, unknown))} to begin with; there are {', '.join(map(repr, known))}."
            f"{hint(unknown, known)}"
        )
    for name, value in init.items():
        for leaf in jax.tree.leaves(value):
            is_number = isinstance(leaf, int | float | np.number) or np.asarray(leaf).dtype.kind in "fiub"
            if is_number and not np.isfinite(np.asarray(leaf, float)).all():
                raise ValueError(f"init: the value of {name!r} has numbers that are not finite: {leaf!r}.")
    for latent in latents:
        given = np.shape(init.get(latent.name, 0.0))
        last = latent.shape[len(latent.shape) - len(given) :]
        if len(given) > len(latent.shape) or any(
            size not in (1, wanted) for size, wanted in zip(given, last, strict=True)
        ):
            raise ValueError(
                f"init: the value of variable {latent.name!r} has shape {given}, and the variable {latent.shape}."
            )


def check_found(pair: Pair, given: Mapping[str, Any], num_steps: Any) -> None:
    """Refuse initial values of what a guide finds by itself."""
    if num_steps == 0 or not pair.guide.traits.is_solved:
        return
    if own := [name for name in given if name in pair.learned.parameters]:
        raise ValueError(
            f"init: {own[0]!r} is a parameter of {pair.name}, which climbs and finds its own. Give values of the "
            f"model's variables, where the climb begins; or num_steps=0, to take parameters as they are."
        )
