"""Fits with fixed draws: where they end is known of normal posteriors, and what they cannot do is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from tests.unit.variational.models import DATA, X, Y, by_hand, exact, regression

import phalanx as phx
from phalanx.variational.methods.fixed_draws import FixedDraws

MEAN, COVARIANCE, EVIDENCE = exact()
HELD = {"optimizer": "lbfgs", "progress": False}


@pytest.fixture(scope="module")
def mean_field():
    return phx.fit(regression, phx.guides.mean_field(), DATA, **HELD)


@pytest.mark.slow
def test_fit_to_a_normal_is_exact(mean_field):
    """The second moments of the draws are right, so nothing is left of their noise but rounding."""
    scale = 1.0 / np.sqrt(np.diag(np.linalg.inv(COVARIANCE)))
    np.testing.assert_allclose(mean_field.params["w.scale"], scale, rtol=2e-2)
    np.testing.assert_allclose((mean_field.params["w.loc"] - MEAN) / scale, 0.0, atol=5e-2)
    assert mean_field.settled and mean_field.timing.gradient_evaluations < 2000
    assert len(mean_field.losses.elbo) == len(mean_field.losses.error) == mean_field.steps


@pytest.mark.slow
def test_losses_verdict_and_evidence_are_as_of_every_fit(mean_field):
    gap = 0.5 * (np.sum(np.log(np.diag(np.linalg.inv(COVARIANCE)))) - np.linalg.slogdet(np.linalg.inv(COVARIANCE))[1])
    found = mean_field.evidence()
    assert mean_field.losses.elbo[-1] == pytest.approx(EVIDENCE - gap, abs=0.05)
    assert found.elbo == pytest.approx(EVIDENCE - gap, abs=5 * found.elbo_error + 0.05)
    assert "scales off" in [finding.topic for finding in mean_field.verdict().findings]


@pytest.mark.slow
def test_another_seed_and_other_data_compile_nothing(mean_field):
    for seed, data in ((1, DATA), (0, {"x": X[::-1].copy(), "y": Y + 1.0})):
        again = phx.fit(regression, phx.guides.mean_field(), data, seed=seed, **HELD)
        assert again.timing.compilations == 0 and again.settled


@pytest.mark.slow
def test_the_same_seed_is_the_same_fit(mean_field):
    again = phx.fit(regression, phx.guides.mean_field(), DATA, **HELD)
    np.testing.assert_array_equal(again.losses.elbo, mean_field.losses.elbo)


@pytest.mark.slow
@pytest.mark.parametrize("guide", [phx.guides.full_rank(), phx.guides.low_rank(rank=2), by_hand])
def test_any_guide_whose_draws_can_be_differentiated_through(guide):
    """That of independent coordinates is below the evidence by 0.95 nats, the others reach it."""
    fit = phx.fit(regression, guide, DATA, **HELD)
    below = 0.95 if guide is by_hand else 0.0
    assert fit.settled and fit.evidence().elbo == pytest.approx(EVIDENCE - below, abs=0.15)


@pytest.mark.slow
def test_parameters_of_the_model_are_learned_too():
    def learned_noise(x, y):
        noise = phx.param("noise", 1.0, constraints.positive)
        w = phx.sample("w", dist.Normal(0.0, 2.0).expand([x.shape[1]]))
        phx.sample("y", dist.Normal(x @ w, noise), obs=y)

    def evidence(noise):
        marginal = 4.0 * X.astype(float) @ X.T + noise**2 * np.eye(len(Y))
        return -0.5 * (np.linalg.slogdet(marginal)[1] + Y @ np.linalg.solve(marginal, Y))

    fit = phx.fit(learned_noise, phx.guides.full_rank(), DATA, **HELD)
    assert fit.params["noise"] == pytest.approx(max(np.linspace(0.2, 1.0, 401), key=evidence), rel=0.02)


def pair_of(fit, chunk):
    return FixedDraws.of(fit.pair, chunk)


@pytest.mark.slow
def test_draws_have_the_moments_that_they_stand_for(mean_field):
    fixed = pair_of(mean_field, 8)
    draws = jax.jit(fixed.hold)(np.uint32(0), np.uint32(0), np.int32(5))
    params = {"w.loc": jnp.zeros(3), "w.scale": jnp.ones(3)}
    drawn = np.asarray(jax.vmap(lambda i: fixed.draw(params, i, draws, {})["w"])(jnp.arange(40)), float)
    np.testing.assert_allclose(drawn.mean(0), 0.0, atol=1e-6)
    np.testing.assert_allclose(drawn.T @ drawn / 40, np.eye(3), atol=1e-5)
    other = jax.jit(fixed.hold)(np.uint32(0), np.uint32(1), np.int32(5))
    assert not np.allclose(drawn[0], fixed.draw(params, jnp.uint32(0), other, {})["w"])


@pytest.mark.slow
def test_the_bound_does_not_depend_on_how_draws_are_cut(mean_field):
    """In chunks of 4 or of 12, its value, error and gradient are the same; and the gradient is that of the value."""
    told = []
    for chunk in (4, 12):
        fixed = pair_of(mean_field, chunk)

        def look(change, fixed=fixed, chunk=chunk):
            draws = fixed.hold(jnp.uint32(3), jnp.uint32(0), jnp.int32(24 // chunk))
            value, slope = jax.value_and_grad(fixed.value(mean_field.free, draws, mean_field.arrays))(change)
            return *fixed.look(change, mean_field.free, draws, mean_field.arrays), value, slope

        told.append(jax.jit(look)(jnp.full(6, 0.1)))
    for a, b in zip(*told, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)
    bound, _, gradient, value, slope = told[0]
    np.testing.assert_allclose(bound, value, rtol=1e-5)
    np.testing.assert_array_equal(gradient, slope)


@pytest.mark.slow
def test_draws_that_are_kept_to():
    fit = phx.fit(regression, phx.guides.mean_field(), DATA, until=False, num_particles=30, **HELD)
    assert not fit.settled and "kept to 30 fixed draws" in fit.unsettled
    assert fit.timing.gradient_evaluations == 30 * (fit.steps + 1)


@pytest.mark.slow
def test_steps_time_and_ctrl_c_end_it(ctrl_c):
    few = phx.fit(regression, by_hand, DATA, num_steps=3, **HELD)
    assert few.steps == 3 and "After 3 steps, with 32 fixed draws, the bound still rises" in few.unsettled
    assert "Time was over" in phx.fit(regression, by_hand, DATA, until=phx.until(seconds=1e-6), **HELD).unsettled

    def stop(report):
        assert "ELBO" in str(report)
        ctrl_c()

    fit = phx.fit(regression, by_hand, DATA, on_block=stop, **HELD)
    assert fit.record.interrupted and 0 < fit.steps < 20 and "Ctrl-C ended the fit" in fit.unsettled


@pytest.mark.slow
def test_particles_over_devices_are_the_same_fit(mesh_of):
    """The bound after one step is, but for rounding."""
    options = {"until": False, "num_particles": 8, "num_steps": 1, **HELD}
    alone = phx.fit(regression, by_hand, DATA, mesh=mesh_of(1, 1), **options)
    both = phx.fit(regression, by_hand, DATA, mesh=mesh_of(2, 1), **options)
    np.testing.assert_allclose(both.losses.elbo, alone.losses.elbo, rtol=1e-4)


def discrete():
    phx.sample("z", dist.Bernoulli(0.3))


def discrete_guide():
    phx.sample("z", dist.Bernoulli(logits=phx.param("logits", 0.0)))


REFUSED = {
    "discrete": ((discrete, discrete_guide, None), {}, "Variable 'z': optimizer='lbfgs' holds its draws"),
    "rows": ((regression, by_hand, DATA), {"batch_size": 6}, "batch_size: optimizer='lbfgs' holds its draws"),
    "objective": (
        (regression, by_hand, DATA),
        {"objective": phx.guides.forward_kl()},
        r"objective: optimizer='lbfgs' .* for forward_kl\(\) use optax.adam",
    ),
}


@pytest.mark.parametrize("arguments, options, message", REFUSED.values(), ids=REFUSED)
def test_models_without_fixed_draws_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        phx.fit(*arguments, **options, **HELD)


def test_other_words_are_no_optimizer():
    with pytest.raises(TypeError, match="'lbfgs' or 'batch-and-match'; got 'bfgs'"):
        phx.fit(regression, by_hand, DATA, optimizer="bfgs", progress=False)


@pytest.mark.slow
def test_a_draw_without_a_density_is_an_error_that_keeps_what_was_begun_with():
    def model():
        x = phx.sample("x", dist.Normal(0.0, 10.0))
        phx.factor("wall", jnp.where(x < 0.0, 3.0 * x, jnp.nan))

    with pytest.raises(phx.FitError, match="some of 32 fixed draws have no finite log density") as raised:
        phx.fit(model, phx.guides.mean_field(init_scale=1.0), init={"x": -0.5}, **HELD)
    assert raised.value.fit.params["x.loc"] == pytest.approx(-0.5, abs=1e-3)
