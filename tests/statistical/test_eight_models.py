"""The eight models of docs/coming-from: sampled, judged, checked, and held to the answers of NumPyro's NUTS."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS
from tests.test_docs import as_script, blocks

import phalanx as phx
from phalanx.diagnostics.convergence import mcse

PAGES = Path(__file__).parents[2] / "docs/coming-from"
NAMES = (
    "varying_slopes", "gaussian_process", "hidden_markov", "stochastic_volatility", "horseshoe", "item_response",
    "differential_equation", "zero_inflated",
)  # fmt: skip
UNLIKE = 5.0
"""Monte-Carlo errors between two means that are too many: by chance in 6e-7 of some 600 comparisons."""

STEEP = ("varying_slopes", "stochastic_volatility", "horseshoe")
"""Models with steep funnels, in which both samplers take smaller steps."""

SIZES: dict[str, Any] = {"num_warmup": 500, "num_samples": 2000, "num_chains": 4}


@pytest.fixture(autouse=True)
def _promotion():
    """Let ranks be promoted, as the pages' readers do."""
    with jax.numpy_rank_promotion("allow"):
        yield


@cache
def ours() -> dict[str, Any]:
    """Return the models and data that the page defines, before it runs them."""
    page = (PAGES / "eight-models.md").read_text().split("## From model")[0]
    found: dict[str, Any] = {}
    exec(compile(as_script(page), "eight-models.md", "exec"), found)
    return found


@cache
def theirs(page: str = "numpyro.md") -> dict[str, Any]:
    """Return the models in another library's language, from the page's blocks that do not run in the page."""
    found = {"populations": ours()["populations"]}
    for _, text in blocks((PAGES / page).read_text(), {"py"}):
        exec(compile(text, page, "exec"), found)
    return found


def constrained(at: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return variables from their unconstrained values, by the names of the page on BlackJAX, and the log Jacobian."""
    found, jacobian = {}, 0.0
    for name, x in at.items():
        scale, _, rest = name.partition("_")
        if scale == "log":
            found[rest], jacobian = jnp.exp(x), jacobian + jnp.sum(x)
        elif scale == "logit":
            p = jax.nn.sigmoid(x)
            found[rest], jacobian = p, jacobian + jnp.sum(jnp.log(p) + jnp.log1p(-p))
        elif scale == "atanh":
            rho = jnp.tanh(x)
            found["corr"] = jnp.array([[1.0, 0.0], [rho, jnp.sqrt(1.0 - rho**2)]])
            jacobian += jnp.log1p(-(rho**2))
        else:
            found[name] = x
    return found, jacobian


POSITIVE = ("scale", "noise", "length", "gap", "overall", "slab", "local", "sharpness", "rates", "first", "spread")
PROBABILITIES = ("stay", "persistence", "zero")


def unconstrained(name: str) -> str:
    """Return the name of a variable's unconstrained value."""
    return f"{'log_' * (name in POSITIVE)}{'logit_' * (name in PROBABILITIES)}{name}".replace("corr", "atanh_rho")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "zero_inflated"])
def test_the_log_densities_of_the_page_on_blackjax_are_those_of_the_models(name):
    model, data, rng = ours()[name], ours()["DATA"][name], np.random.default_rng(0)
    tape = phx.trace(phx.seed(model, 0))(**data)
    shapes = {k: v.shape for k, v in tape.items() if v.is_latent and not jnp.issubdtype(v.dtype, jnp.integer)}
    at = {unconstrained(k): 0.3 * jnp.asarray(rng.normal(size=() if k == "corr" else s)) for k, s in shapes.items()}
    values, jacobian = constrained(at)
    expected = phx.log_joint(phx.marginalize(model) if name == "hidden_markov" else model)(values, **data)
    found = theirs("blackjax.md")[name](at, **data)
    assert found == pytest.approx(float(expected + jacobian), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_agrees_with_numpyro(name):
    if name == "hidden_markov":
        pytest.importorskip("funsor", reason="NumPyro enumerates by funsor, which is not installed")
    model, data = ours()[name], ours()["DATA"][name]
    missing = "impute" if name == "zero_inflated" else None
    program = phx.marginalize(model) if name == "hidden_markov" else model
    accept = 0.95 if name in STEEP else 0.8
    kernel = phx.nuts(target_acceptance=accept)
    posterior = phx.mcmc(program, data, kernel=kernel, missing=missing, progress=False, **SIZES)
    peer = MCMC(NUTS(theirs()[name], target_accept_prob=accept), chain_method="vectorized", progress_bar=False, **SIZES)
    peer.run(jax.random.key(1), **data)
    expected = {k: np.asarray(v) for k, v in peer.get_samples(group_by_chain=True).items()}
    replicated = posterior.predictive(num_draws=20)
    if name == "hidden_markov":  # its observations share their states
        with pytest.raises(ValueError, match="loo: 'state' is a term of the log density"):
            posterior.loo()
    else:
        assert np.isfinite(posterior.loo().elpd)
    assert set(posterior.draws) - set(expected) == set()
    apart = {}
    for key, draws in posterior.draws.items():
        error = np.hypot(mcse(draws), mcse(expected[key]))
        gap = np.abs(draws.mean((0, 1)) - expected[key].mean((0, 1)))
        apart[key] = float(np.max(np.where(gap > 1e-6, gap / np.maximum(error, 1e-12), 0.0)))
    print(name, posterior.verdict(), apart, flush=True)
    assert max(apart.values()) < UNLIKE, apart
    assert np.max(posterior.summary()["r_hat"].to_numpy()) < 1.05
    assert replicated and all(np.isfinite(values).all() for values in replicated.values())
