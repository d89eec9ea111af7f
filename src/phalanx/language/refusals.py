"""Refusals of NumPyro's primitives that have no meaning here, each with the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.distributions import Distribution, Unit

from phalanx.distributions.blocked import Blocked
from phalanx.mesh.compatibility.numpyro_internals import Message, on_sites_within, prior_of_module
from phalanx.mesh.specs import PyTree


def check(message: Message) -> None:
    """Refuse a message other than a random variable, now or, if an outer handler may answer it, at its end."""
    if (refuse := _REFUSALS.get(message["type"])) is not None:
        refuse(message)


def is_term(distribution: Distribution) -> bool:
    """Return whether a distribution only stands for a term of the log density, from `factor`."""
    while (base := getattr(distribution, "base_dist", None)) is not None:  # masked or expanded
        distribution = base
    return isinstance(distribution, Unit) or (isinstance(distribution, Blocked) and distribution.is_term)


def check_deterministic(name: str, value: object) -> None:
    """Raise unless a deterministic value is an array or a number."""
    try:
        if value is None:
            raise TypeError
        jnp.asarray(value)
    except TypeError:
        raise TypeError(
            f"The deterministic value {name!r} must be an array or a number; got {type(value).__name__}. Record each "
            f"array of it under a name of its own."
        ) from None


def check_same_value(site: Message, value: object) -> None:
    """Raise if a latent variable of a loop has got another value, after the loop has run with its own."""
    if not site.get("is_observed", True) and value is not site["value"]:
        raise ValueError(
            f"Variable {site['name']!r} is sampled inside of numpyro.contrib.control_flow, where it is drawn, or "
            f"summed out by phx.marginalize, and cannot be given a value from outside. Give it by "
            f"numpyro.handlers.condition within the model."
        )


def refuse_other_thread(message: Message) -> None:
    """Refuse a site of NumPyro's in a thread that traces while another thread does."""
    raise RuntimeError(
        f"numpyro.{message['type']} {message.get('name', '')!r}: NumPyro has one stack of handlers for all threads, "
        f"and another thread was tracing a program when this one began. Run programs in NumPyro's language in one "
        f"thread at a time, or in processes; those that call phx.sample run in any number of threads."
    )


def _check_prior_covers(name: str, prior: PyTree, weights: PyTree) -> None:
    """Raise unless a dict of priors has one for every array of weights: the others would keep their initial values."""
    if not isinstance(prior, dict):
        return
    paths = [".".join(str(key.key) for key in path) for path, _ in jax.tree_util.tree_leaves_with_path(weights)]
    if missing := [path for path in paths if path not in prior]:
        raise ValueError(
            f"numpyro.module {name!r}: the weights {', '.join(map(repr, missing))} have no prior, and would keep their "
            f"initial values. Give prior= one for each, or a function of name and shape."
        )


def _param(message: Message) -> None:
    name = message["name"]
    if message["value"] is not None:
        return
    if name.endswith("$params") and (prior := prior_of_module()) is not None:
        if message["args"] and message["args"][0] is not None:
            _check_prior_covers(name.removesuffix("$params"), prior, message["args"][0])
        return

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            f"numpyro.module {name.removesuffix('$params')!r}: networks whose weights are parameters of NumPyro are "
            f"not supported. For phx.fit, in a guide or a model, use "
            f"phx.network({name.removesuffix('$params')!r}, network); for sampling, in which all weights have a prior, "
            f"use phx.random_network({name.removesuffix('$params')!r}, init, apply)."
            if name.endswith("$params")
            else f"Site {name!r} is a numpyro.param, which is not supported. For phx.fit, in a guide or a model, use "
            f"phx.param({name!r}, init, constraint); for sampling make it a numpyro.sample with a prior "
            f"(numpyro.handlers.lift does it for a whole model), or an argument of the model; to fix its value use "
            f"numpyro.handlers.substitute(model, {{{name!r}: value}})."
        )

    message["fn"] = refuse


def _mutable(message: Message) -> None:
    raise ValueError(
        f"Site {message['name']!r} is a numpyro.mutable: a density must not depend on state that changes from one "
        f"evaluation to the next. Use a module without state, such as one that normalises by layer and not by batch, "
        f"or pass the state in as data."
    )


def _plate(message: Message) -> None:
    size, subsample_size = message["args"]
    _unless_there_is_a_key(
        message,
        f"plate {message['name']!r}: {subsample_size} of {size} rows would be drawn at random in each run of the "
        f"program, so its log density would be random. Leave subsample_size out; phx.fit(batch_size=) draws rows, and "
        f"so do the kernels phx.sgld and phx.sghmc of phx.mcmc.",
    )


def _key(message: Message) -> None:
    if prior_of_module() is not None:  # the key initialises weights, of which only the shapes are used
        return
    _unless_there_is_a_key(
        message,
        "The program asks for a random key, with numpyro.prng_key or by hiding a variable without a value in "
        "numpyro.handlers.block, and there is no key: under inference a density must be the same each time. Put "
        "phx.seed or numpyro.handlers.seed around that part, or draw with a phx.sample that is not hidden.",
    )


def _unless_there_is_a_key(message: Message, sentence: str) -> None:
    if message["value"] is not None:
        return
    inner: Callable[..., Any] = message["fn"]

    def draw(*args: Any, rng_key: Any = None, **kwargs: Any) -> Any:
        if rng_key is None:
            raise ValueError(sentence)
        return inner(*args, rng_key=rng_key, **kwargs)

    message["fn"] = draw


def _control_flow(message: Message) -> None:
    def refuse(site: Message) -> None:
        if site["type"] == "sample" and not site["is_observed"] and site["kwargs"].get("rng_key") is None:
            if site["fn"].support.is_discrete:
                raise ValueError(
                    f"Variable {site['name']!r} is latent and discrete inside of numpyro.contrib.control_flow "
                    f"({_flow(message)}), and chains cannot move it. Sum over its values with "
                    f"phx.marginalize(model). Or carry the logarithm of the probability of each value from step "
                    f"to step (the forward algorithm), in jax.lax.{_flow(message)}, and add that of the last step with "
                    f"numpyro.factor or phx.factor."
                )
            if _flow(message) == "cond":
                raise ValueError(
                    f"Variable {site['name']!r} is latent in a branch of numpyro.contrib.control_flow.cond, where only "
                    f"observed variables have a meaning here. If both branches sample it, sample it before, with the "
                    f"parameters chosen by jnp.where(condition, a, b); otherwise sample a variable for each branch "
                    f"before, and choose between their values by jnp.where."
                )
            raise ValueError(
                f"Variable {site['name']!r} is latent inside of numpyro.contrib.control_flow (scan), where only "
                f"observed variables have a meaning here. Sample it before, all steps at once, as in "
                f"z = numpyro.sample('{site['name']}_steps', dist.Normal(0.0, 1.0).expand([num_steps])), and make the "
                f"steps from z in jax.lax.{_flow(message)}; or write out the loop in Python."
            )

    on_sites_within(message, refuse)


def _flow(message: Message) -> str:
    return "cond" if "cond" in getattr(message["fn"], "__name__", "") else "scan"


_REFUSALS: dict[str, Callable[[Message], None]] = {
    "param": _param,
    "mutable": _mutable,
    "plate": _plate,
    "prng_key": _key,
    "control_flow": _control_flow,
}
