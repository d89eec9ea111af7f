"""Angles near pi, where the ends of (-pi, pi) meet: chains, particles, guides and maxima against quadrature.

A mean is off by more than 5 Monte-Carlo standard errors with probability 6e-7, and each test compares at most 22.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro import plate
from scipy.special import i0e

import phalanx as phx
from phalanx.diagnostics import mcse

LIMIT = 5.0
GRID = np.linspace(-np.pi, np.pi, 241, dtype=np.float32)[:-1]
STEP = 2 * np.pi / len(GRID)
X = np.linspace(-1.0, 1.0, 5, dtype=np.float32)
RANDOM = np.random.default_rng(0)


def near_pi(concentration, *shape):
    return RANDOM.vonmises(np.pi, concentration, shape).astype(np.float32)


Y = {"one": near_pi(2.0, 4), "rows": near_pi(3.0, 3), "pair": near_pi(1.0, 2), "line": near_pi(4.0, 5)}


def one(y):
    phi = phx.sample("one", dist.VonMises(np.pi, 1.0))
    phx.sample("y_one", dist.VonMises(phi, 2.0), obs=y)


def rows(y):
    with plate("row", len(y)):
        phi = phx.sample("rows", dist.VonMises(3.0, 2.0))
        phx.sample("y_rows", dist.VonMises(phi, 3.0), obs=y)


def pair(y):
    phi = phx.sample("pair", dist.SineBivariateVonMises(np.pi, -3.0, 2.0, 3.0, 1.0))
    phx.sample("y_pair", dist.VonMises(phi, 1.0), obs=y)


def mixed():
    mixture = dist.MixtureSameFamily(
        dist.Categorical(jnp.array([0.6, 0.4])), dist.VonMises(jnp.array([3.0, -2.0]), jnp.array([3.0, 6.0]))
    )
    phx.sample("mixed", mixture)


def line(y):
    start = phx.sample("start", dist.VonMises(0.0, 0.1))
    slope = phx.sample("slope", dist.VonMises(0.0, 4.0))
    phx.sample("y_line", dist.VonMises(start + slope * X, 4.0), obs=y)


def everything(y_one, y_rows, y_pair, y_line):
    one(y_one)
    rows(y_rows)
    pair(y_pair)
    mixed()
    line(y_line)


ALL = {f"y_{name}": y for name, y in Y.items()}


def log_joint_on_grid(program, *names, shape=(), **data):
    """Return log densities over the grids of these angles, or of all elements of the only one, each equal."""
    log_joint = phx.log_joint(program)

    @jax.jit
    @jax.vmap
    def at(angles):
        return log_joint(dict(zip(names, angles, strict=True)), **data)

    axes = np.meshgrid(*[GRID] * (len(names) if not shape else shape[0]), indexing="ij")
    flat = [axis.ravel() for axis in axes]
    values = np.asarray(at((np.stack(flat, -1),) if shape else tuple(flat)), float)
    return axes, values.reshape(axes[0].shape)


def means(axes, log_density):
    """Return the means of cosine and sine of each angle, and the log evidence."""
    top = log_density.max()
    mass = np.exp(log_density - top)
    log_evidence = top + np.log(mass.sum() * STEP**mass.ndim)
    return [np.average(np.exp(1j * axis.astype(float)), weights=mass) for axis in axes], log_evidence


@pytest.fixture(scope="module", autouse=True)
def ranks():
    """Allow ranks to be promoted: NumPyro's mixtures do so."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def exact(ranks):
    found = {}
    found["one"] = means(*log_joint_on_grid(one, "one", y=Y["one"]))[0][0]
    found["rows"] = np.array([means(*log_joint_on_grid(rows, "rows", shape=(1,), y=y[None]))[0][0] for y in Y["rows"]])
    found["pair"] = np.array(means(*log_joint_on_grid(pair, "pair", shape=(2,), y=Y["pair"]))[0])
    found["mixed"] = means(*log_joint_on_grid(mixed, "mixed"))[0][0]
    found["start"], found["slope"] = means(*log_joint_on_grid(line, "start", "slope", y=Y["line"]))[0]
    return found


KERNELS = {
    "nuts": (phx.nuts(), 4, 600),
    "chees": (phx.chees(), 64, 100),
    "laps": (phx.laps(), 512, 10),
    "mams": (phx.mams(), 16, 400),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_chains_cross_pi(name, exact):
    kernel, num_chains, num_samples = KERNELS[name]
    sizes: Any = {"num_chains": num_chains, "num_samples": num_samples, "num_warmup": 300, "progress": False}
    posterior = phx.mcmc(everything, ALL, kernel=kernel, **sizes)
    assert "high R-hat" not in [finding.topic for finding in posterior.verdict().findings]
    for variable, mean in exact.items():
        angles = np.asarray(posterior[variable], np.float64)
        for part, value in ((np.cos, np.real(mean)), (np.sin, np.imag(mean))):
            draws = part(angles)
            assert (abs(draws.mean((0, 1)) - value) < LIMIT * mcse(draws)).all(), (variable, part)


@pytest.mark.slow
def test_the_evidence_of_angles_is_that_of_quadrature():
    log_evidence = means(*log_joint_on_grid(one, "one", y=Y["one"]))[1]
    found = phx.smc(one, {"y": Y["one"]}, num_particles=1000, progress=False)
    assert abs(found.evidence().log_evidence - log_evidence) < LIMIT * found.evidence().error


PLACES = np.array([0.8, np.pi, -2.0])
AROUND = (PLACES + RANDOM.vonmises(0.0, 5.0, (20, 3)) + np.pi).astype(np.float32) % np.float32(2 * np.pi) - np.pi


def log_i0(kappa):
    return kappa + np.log(i0e(kappa))


def around(y):
    phi = phx.sample("phi", dist.VonMises(0.0, jnp.full(3, 0.5)))
    phx.sample("y", dist.VonMises(phi[None], 5.0), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("guide", [phx.guides.mean_field(), phx.guides.structured()])
def test_independent_normals_fit_concentrated_angles_wherever_they_lie(guide):
    fit = phx.fit(around, guide, {"y": AROUND}, progress=False)
    resultant = 5.0 * np.exp(1j * AROUND.astype(float)).sum(0) + 0.5  # the posterior is von Mises
    drawn = np.exp(1j * np.asarray(fit.sample(n=4000)["phi"], float)) / np.exp(1j * np.angle(resultant))
    sd = 1 / np.sqrt(abs(resultant))
    assert (abs(np.angle(drawn.mean(0))) < 0.1 * sd).all()
    np.testing.assert_allclose(np.angle(drawn).std(0), sd, rtol=0.1)
    log_evidence = log_i0(abs(resultant)).sum() - 60 * (np.log(2 * np.pi) + log_i0(5.0)) - 3 * log_i0(0.5)
    evidence = fit.evidence()
    assert evidence.reliable and abs(evidence.log_evidence - log_evidence) < LIMIT * evidence.error


@pytest.mark.slow
def test_a_maximum_is_that_of_the_angle():
    found = phx.maximize(around, {"y": AROUND})
    top = np.angle(5.0 * np.exp(1j * AROUND).sum(0) + 0.5)
    np.testing.assert_allclose(np.exp(1j * found.values["phi"]), np.exp(1j * top), atol=1e-3)
    assert found.log_density == pytest.approx(float(phx.log_joint(around)(found.values, y=AROUND)), rel=1e-5)
    assert not found.at_bounds and not found.unchecked


def test_values_at_pi_have_a_position_and_rows_may_be_sharded():
    mesh = phx.make_mesh(chain=1, data=2, devices=jax.devices()[:2])
    whole, sharded = (phx.Target(rows, {"y": y}) for y in (Y["rows"], phx.shard(Y["rows"], mesh)))
    values = {"rows": np.array([np.pi, -np.pi, 3.0], np.float32)}
    position = whole.unconstrain(values)
    assert position["rows"].shape == (3, 2)
    np.testing.assert_allclose(whole.constrain(position)["rows"], values["rows"], atol=1e-6)
    position = jax.tree.map(lambda points: 1.3 * points, position)
    np.testing.assert_allclose(sharded.log_density(position), whole.log_density(position), rtol=1e-5)
    posterior = phx.mcmc(one, {"y": Y["one"]}, num_warmup=20, num_samples=4, init={"one": np.pi}, progress=False)
    assert posterior["one"].shape == (4, 4)
