"""The eight models of docs/coming-from: sampled, judged, checked, compared, and held to the answers of NumPyro's NUTS.

The same models as the pages on other libraries write them have the same log densities, where a library is installed.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, log_likelihood
from tests.test_docs import as_script, blocks

import phalanx as phx
from phalanx.density.imputation import impute
from phalanx.diagnostics.convergence import mcse
from phalanx.posterior.criticism.loo import _container

PAGES = Path(__file__).parents[2] / "docs/coming-from"
NAMES = (
    "varying_slopes", "gaussian_process", "hidden_markov", "stochastic_volatility", "horseshoe", "item_response",
    "differential_equation", "zero_inflated",
)  # fmt: skip
UNLIKE = 5.0
"""Monte-Carlo errors between two means that are too many: by chance in 6e-7 of some 600 comparisons."""

STEEP = ("varying_slopes", "stochastic_volatility", "horseshoe")
"""Models with steep funnels, in which both samplers take smaller steps."""

SIMPLER: dict[str, dict[str, Any]] = {
    "varying_slopes": {"z": np.zeros((15, 2), np.float32)},
    "gaussian_process": {"length": np.float32(0.01)},
    "stochastic_volatility": {"z": np.zeros(100, np.float32)},
    "horseshoe": {"z": np.zeros(20, np.float32)},
    "item_response": {"sharpness": np.ones(10, np.float32)},
    "differential_equation": {"rates": np.array([0.5, 0.3, 0.3, 0.7], np.float32)},
    "zero_inflated": {"slope": np.float32(0.0)},
}
"""Values of a variable that leave out what makes the model its own: groups, smoothness, the covariate."""

MOST_APART = 2.0
"""Nats between comparisons of two models by two samplers' draws: five times their difference between seeds."""

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
        with pytest.raises(ValueError, match="loo: the entries of 'y' share discrete variables"):
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
    assert np.nanmax(posterior.summary()["r_hat"].to_numpy()) < 1.05  # entries of a correlation matrix are constant
    assert replicated and all(np.isfinite(values).all() for values in replicated.values())


def their_elpd(model: Any, peer: MCMC, data: dict[str, Any]) -> float:
    """Return the elpd of NumPyro's draws by ArviZ, of the observations that are there."""
    arviz = pytest.importorskip("arviz")
    terms = log_likelihood(model, peer.get_samples(group_by_chain=True), batch_ndims=2, **data)
    parts = [one[..., ~np.isnan(data[name])] if one.ndim > 2 else one[..., None] for name, one in terms.items()]
    found = arviz.loo(_container(arviz, np.concatenate(parts, -1)), pointwise=True)
    return float(found.elpd_loo if "elpd_loo" in dir(found) else found.elpd)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # ArviZ's own
@pytest.mark.parametrize("name", list(SIMPLER))
def test_it_is_compared_with_a_simpler_model_as_numpyro_is(name):
    data, kernel = ours()["DATA"][name], phx.nuts(target_acceptance=0.95)
    missing = "impute" if name == "zero_inflated" else None
    posteriors, expected = {}, {}
    for kind, values in {"whole": {}, "simpler": SIMPLER[name]}.items():
        model = phx.do(ours()[name], values) if values else ours()[name]
        posteriors[kind] = phx.mcmc(model, data, kernel=kernel, missing=missing, progress=False, **SIZES)
        written = handlers.do(theirs()[name], data=values) if values else theirs()[name]
        peer = MCMC(NUTS(written, target_accept_prob=0.95), chain_method="vectorized", progress_bar=False, **SIZES)
        peer.run(jax.random.key(1), **data)
        expected[kind] = their_elpd(written, peer, data)
    elpd = phx.compare(posteriors)["elpd"].to_dict()
    print(name, elpd, expected, flush=True)
    assert elpd["whole"] - elpd["simpler"] == pytest.approx(expected["whole"] - expected["simpler"], abs=MOST_APART)
    assert max(elpd, key=lambda kind: elpd[kind]) == "whole"


def points(name: str) -> list[tuple[dict[str, np.ndarray], dict[str, Any], float, float]]:
    """Return three points: unconstrained and constrained values, the log density of the model, and the log Jacobian."""
    model, data, rng = ours()[name], ours()["DATA"][name], np.random.default_rng(0)
    if name == "hidden_markov":
        model = phx.marginalize(model)
    if name == "zero_inflated":
        model, data, _ = impute(model, data)
    tape = phx.trace(phx.seed(model, 0))(**data)
    shapes = {key: v.shape for key, v in tape.items() if v.is_latent and not jnp.issubdtype(v.dtype, jnp.integer)}
    found = []
    for _ in range(3):
        at = {unconstrained(k): 0.3 * rng.normal(size=() if k == "corr" else s) for k, s in shapes.items()}
        values, jacobian = constrained({key: jnp.asarray(value, jnp.float32) for key, value in at.items()})
        density = float(phx.log_joint(model)(values, **data))
        found.append((at, {key: np.asarray(v, np.float64) for key, v in values.items()}, density, float(jacobian)))
    return found


def of_pymc(name: str, at: dict[str, np.ndarray], values: dict[str, Any]) -> tuple[dict[str, np.ndarray], float]:
    """Return the values of PyMC's coordinates, and the logarithm of the volume that they have in place of ours."""
    ends = {"log": "_log__", "logit": "_logodds__"}
    point = {key: value for key, value in at.items() if key.partition("_")[0] not in (*ends, "atanh")}
    for key, value in at.items():
        kind, _, rest = key.partition("_")
        if kind in ends:
            point[rest + ends[kind]] = value
    if name == "varying_slopes":  # the Cholesky factor of the covariance, with the logarithm of its diagonal
        factor = values["scale"][:, None] * values["corr"]
        del point["scale_log__"]
        point["chol_cholesky-cov-packed__"] = np.array([np.log(factor[0, 0]), factor[1, 0], np.log(factor[1, 1])])
        return point, -float(np.log(values["scale"][1]))
    if name == "stochastic_volatility":  # the path itself
        path, before = [], 0.0
        for z in point.pop("z"):
            before = values["persistence"] * before + values["scale"] * z
            path.append(before)
        return {**point, "path": np.array(path)}, -len(path) * float(np.log(values["scale"]))
    if name == "zero_inflated":
        point["x_unobserved"] = point.pop("x_missing")
    return point, 0.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyMC says that it imputes, and has no BLAS
@pytest.mark.parametrize("name", NAMES)
def test_the_log_densities_of_the_page_on_pymc_are_those_of_the_models(name):
    pytest.importorskip("pymc", reason="PyMC is not installed")
    data = ours()["DATA"][name]
    log_density, away = theirs("pymc.md")[name](**data).compile_logp(), []
    for at, values, density, jacobian in points(name):
        point, volume = of_pymc(name, at, values)
        away.append(float(log_density(point)) - density - jacobian - volume)
    assert np.ptp(away) < 2e-2, away  # up to a constant: PyMC's prior of a correlation is not normalised


def programs() -> dict[str, str]:
    """Return the programs of the page on Stan by title, the first line of each."""
    texts = [text for _, text in blocks((PAGES / "stan.md").read_text(), {"stan"})]
    return {text.splitlines()[0].removeprefix("// ").lower().replace("-", " "): text for text in texts}


def for_stan(name: str) -> dict[str, Any]:
    """Return the data of a Stan program, which counts from 1."""
    data = {key: np.asarray(value) for key, value in ours()["DATA"][name].items()}
    if name == "zero_inflated":
        gap, seen = np.isnan(data["x"]), ~np.isnan(data["count"])
        return {
            "N": int((~gap).sum()), "M": int(gap.sum()), "C": int(seen.sum()), "seen_x": np.flatnonzero(~gap) + 1,
            "gap_x": np.flatnonzero(gap) + 1, "x_seen": data["x"][~gap], "seen_count": np.flatnonzero(seen) + 1,
            "count": data["count"][seen].astype(int),
        }  # fmt: skip
    counted = {key: data[key] + 1 for key in ("group", "person", "item") if key in data}
    rows = len(next(iter(data.values())))
    return {**data, **counted, "N": rows, "T": rows}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_log_densities_of_the_page_on_stan_are_those_of_the_models(name):
    """Up to a constant, which Stan leaves out; the differential equation is solved by steps of other lengths."""
    stanli = pytest.importorskip("stanli", reason="stanli, an interpreter of Stan programs, is not installed")
    (text,) = (text for title, text in programs().items() if title.startswith(name.replace("_", " ")))
    wanted = {key: value for key, value in for_stan(name).items() if re.search(rf"\b{key}\b", text)}
    try:
        model = stanli.Model(stan_code=text, data={k: np.asarray(v).tolist() for k, v in wanted.items()})
    except RuntimeError as error:  # of what its interpreter lacks, as hmm_marginal
        pytest.skip(str(error))
    away = []
    for at, values, density, jacobian in points(name):
        if "corr" in values:  # whose rows must have length 1 in float64
            rho = np.tanh(at["atanh_rho"])
            values["corr"] = np.array([[1.0, 0.0], [rho, np.sqrt(1.0 - rho**2)]])
        found, _ = model.log_prob_grad(model.unconstrain(values))
        away.append(float(found) - density - jacobian)
    assert np.ptp(away) < (0.1 if name == "differential_equation" else 5e-3), away
