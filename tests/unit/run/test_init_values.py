"""Where chains begin, as the user says it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.apart import compiled_in, of_a_run

import phalanx as phx

STILL = {"kernel": phx.hmc(1, step_size=1e-6), "num_chains": 4, "num_warmup": 0, "num_samples": 1, "progress": False}
"""A run whose only draw is where it began, but for rounding."""


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 10.0))
    scale = phx.sample("scale", dist.HalfNormal(1.0))
    phx.sample("share", dist.Dirichlet(np.ones(3, np.float32)))
    phx.sample("below", dist.Uniform(0.0, scale))
    phx.sample("y", dist.Normal(mean, scale), obs=y)


def level(y):
    """As few variables as will do: for runs whose variables do not matter."""
    scale = phx.sample("scale", dist.HalfNormal(1.0))
    phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 10.0)), scale), obs=y)


def groups(y):
    mean = phx.sample("mean", dist.Normal(0.0, 10.0))
    effect = phx.sample("effect", dist.Normal(mean, 1.0).expand([y.shape[0], 2]).to_event(1))
    phx.sample("y", dist.Normal(effect, 1.0).to_event(1), obs=y)


@pytest.fixture(scope="module")
def sampler():
    return phx.compile(model, {"y": np.ones(5)}, **compiled_in(STILL))


def begun(sampler, init, seed=0):
    posterior = sampler.run(seed, init=init, **of_a_run(STILL))
    return {name: values[:, 0] for name, values in posterior.draws.items()}, posterior


def agree(found, expected):
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_values_for_all_chains_and_for_each(sampler):
    each = np.array([-1.0, 0.0, 1.0, 50.0])
    values = {"mean": each, "scale": 2.0, "share": [0.2, 0.3, 0.5], "below": 1.5}
    found, posterior = begun(sampler, values)
    for name, value in values.items():
        agree(found[name], value)
    assert posterior.record.init == "values (mean, scale, share, below)"


@pytest.mark.slow
def test_variables_without_initial_values_are_drawn_as_before(sampler):
    random, posterior = begun(sampler, None)
    found, _ = begun(sampler, {"mean": 3.0})
    agree(found["mean"], 3.0)
    for name in ("scale", "share", "below"):
        agree(found[name], random[name])
    assert posterior.record.init == "random"


def posterior_of(draws):
    """Draws alone: nothing else of a posterior is looked at here."""
    return phx.Posterior(draws, {}, None, None)  # pyright: ignore[reportArgumentType]


def test_draws_of_a_posterior(sampler):
    values = {"mean": np.arange(8.0).reshape(4, 2), "unknown": np.ones((4, 2))}
    earlier = posterior_of(values)
    found, posterior = begun(sampler, earlier)
    agree(found["mean"], [1, 3, 5, 7])
    assert posterior.record.init == "draws of a posterior (mean)"
    fewer = posterior_of({"mean": np.arange(7.0).reshape(1, 7)})
    agree(begun(sampler, fewer)[0]["mean"], [0, 2, 4, 6])


def test_a_posterior_begins_where_it_ended(sampler):
    ended, posterior = begun(sampler, {"mean": 9.0})
    found, _ = begun(sampler, posterior, seed=1)
    for name, values in ended.items():
        agree(found[name], values)


@pytest.mark.parametrize(
    "init",
    [
        lambda key: {"mean": 100 + jax.random.normal(key)},
        lambda key: {"mean": 100 + jax.random.normal(key, (4,))},
        lambda key: {"mean": 100 + np.random.default_rng(np.asarray(jax.random.key_data(key))).normal()},
        lambda key: {"mean": 100 + np.random.normal()},
    ],
    ids=["of JAX", "for all chains", "of NumPy", "of random numbers of its own"],
)
def test_a_function_of_a_key_is_called_with_each_chains_own(sampler, init):
    found, _ = begun(sampler, init)
    assert len(set(found["mean"].tolist())) == 4
    assert np.abs(found["mean"] - 100).max() < 7


@pytest.mark.slow
def test_the_prior(sampler):
    found, posterior = begun(sampler, "prior")
    other, again = begun(sampler, "prior", seed=1)
    assert posterior.record.init.startswith("draws from the prior") and again.timing.compilations == 0
    assert (found["below"] < found["scale"]).all() and (found["mean"] != other["mean"]).all()
    keys = jax.random.split(jax.random.key(0), (100, 4))  # as many at a time as there are chains: that is compiled
    several = [sampler.executables.prior(four, sampler.arrays) for four in keys]
    draws = {name: np.concatenate([few[name] for few in several]) for name in several[0]}
    # the sd of 400 draws from N(0, 10) is off by a fifth (5.6 standard errors) once in 10^7
    assert 8 < draws["mean"].std() < 12 and abs(draws["mean"].mean()) < 3 and draws["share"].shape == (400, 3)


@pytest.mark.parametrize(
    "init, error, message",
    [
        ({"mew": 1.0}, ValueError, "no latent variable 'mew'; it has 'mean', 'scale', 'share', 'below'"),
        ({"y": 1.0}, ValueError, "no latent variable 'y'"),
        ({"mean": np.ones(3)}, ValueError, r"'mean' has shape \(3,\); expected \(\), or \(4,\) with a value for each"),
        ({"share": [0.5, 0.5]}, ValueError, r"'share' has shape \(2,\); expected \(3,\), or \(4, 3\)"),
        ({"scale": [1.0, 1.0, -2.0, 1.0]}, ValueError, "the value -2.0 of variable 'scale' for chain 2 lies outside"),
        ({"scale": 0.0}, ValueError, "the value 0.0 of variable 'scale' for chain 0 lies outside"),
        ({"scale": 1.0, "below": 5.0}, ValueError, "the value 5.0 of variable 'below' for chain 0 lies outside"),
        ({"share": [0.5, 0.6, 0.5]}, ValueError, r"the value of shape \(3,\) of variable 'share' for chain 0"),
        ({"mean": np.nan}, ValueError, "1 of the values of variable 'mean' are not finite"),
        (
            {"mean": np.ma.masked_equal([1.0, 5.0, 1.0, 1.0], 5.0)},
            ValueError,
            "1 of the values of variable 'mean' are m",
        ),
        ({"mean": 1e30}, ValueError, "not finite at the start, with the values of 'mean' that init= gives.*'mean'"),
        ({"mean": "high"}, TypeError, "the value of variable 'mean' is not an array of numbers: 'high'"),
        ("priors", TypeError, "expected a dict .* got 'priors'"),
        (3, TypeError, "expected a dict .* got 3"),
        (lambda key: 3, TypeError, "the function must return a dict of values by variable, got int"),
    ],
)
def test_wrong_initial_values_are_refused(sampler, init, error, message):
    with pytest.raises(error, match=message):
        sampler.run(0, init=init)


@pytest.mark.slow
def test_a_value_for_each_chain_is_never_taken_for_an_element_of_a_vector():
    """Where there are as many chains as elements, all chains would begin at one point."""

    def vector(y):
        mean = phx.sample("mean", dist.Normal(0.0, 1.0).expand([4]))
        phx.sample("y", dist.Normal(mean.sum(), 1.0), obs=y)

    of_numbers = posterior_of({"mean": np.arange(8.0).reshape(4, 2)})
    for init in (of_numbers, lambda key: {"mean": jax.random.normal(key)}, phx.superchains(2, of_numbers)):
        with pytest.raises(ValueError, match=r"'mean' has shape \(\); expected \(4,\), or \(4, 4\)"):
            phx.mcmc(vector, {"y": np.ones(5)}, init=init, **STILL)
    begun = phx.mcmc(vector, {"y": np.ones(5)}, init={"mean": np.arange(4.0)}, **STILL)
    np.testing.assert_allclose(begun.draws["mean"][:, 0], np.tile(np.arange(4.0), (4, 1)), atol=1e-4)


def test_a_posterior_of_another_model_is_refused(sampler):
    with pytest.raises(ValueError, match="the posterior has no draws of this model's variables"):
        sampler.run(0, init=posterior_of({"x": np.ones((4, 2))}))


def test_other_values_compile_nothing(sampler):
    sampler.run(0, **of_a_run(STILL))
    again = phx.mcmc(model, {"y": np.ones(5)}, **STILL, init={"mean": 7.0})
    assert again.timing.compilations == 0
    agree(again.draws["mean"][:, 0], 7.0)
    stream = phx.stream(model, {"y": np.ones(5)}, **STILL, init={"mean": 8.0})
    agree(next(stream)["mean"][:, 0], 8.0)


@pytest.mark.slow
@pytest.mark.parametrize("init", ["values", pytest.param("prior", marks=pytest.mark.slow)])
def test_rows_that_are_spread_and_padded(init, mesh_of):
    y = np.arange(14.0).reshape(7, 2)
    effect = np.arange(56.0).reshape(4, 7, 2)
    given = {"effect": effect, "mean": 1.0} if init == "values" else init
    found = {}
    for mesh in (mesh_of(2, 4), mesh_of(1, 1))[: 1 if init == "values" else 2]:
        data = {"y": phx.shard(y, mesh)}
        posterior = phx.mcmc(groups, data, **STILL, mesh=mesh, init=given)
        found[mesh.shape["data"]] = posterior.draws["effect"][:, 0]
    assert found[4].shape == (4, 7, 2)
    agree(found[4], effect if init == "values" else found[1])


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [phx.hmc(3), pytest.param(phx.nuts(), marks=pytest.mark.slow)], ids=["hmc", "nuts"])
def test_how_warm_up_went_is_kept(kernel, tmp_path):
    sizes: dict[str, Any] = {"num_chains": 4, "num_warmup": 60, "num_samples": 5}
    posterior = phx.mcmc(level, {"y": np.ones(5)}, kernel=kernel, **sizes, progress=False)
    told = posterior.warmup
    assert {len(values) for values in told.values()} == {len(told["step_size"])}
    assert (np.diff(told["iteration"]) >= 0).all() and told["iteration"][-1] >= 60
    assert (told["step_size"] > 0).all() and told["metric_changed"].any() == kernel.learns_moments
    again = phx.Posterior.load(posterior.save(tmp_path / "run.npz"))
    np.testing.assert_array_equal(again.warmup["step_size"], told["step_size"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel",
    [pytest.param(phx.nuts(), marks=pytest.mark.slow), phx.hmc(num_steps=4), phx.rwmh(0.5)],
    ids=["nuts", "hmc", "rwmh"],
)
def test_superchains_begin_together_and_come_apart(kernel):
    sizes = {"num_chains": 8, "init": phx.superchains(2), "progress": False}
    still = phx.mcmc(level, {"y": np.ones(5)}, **{**STILL, **sizes})
    for values in still.draws.values():
        groups = values.reshape(2, 4, -1)
        agree(groups, np.broadcast_to(groups[:, :1], groups.shape))
        assert (abs(groups[0] - groups[1]) > 1e-3).all()
    posterior = phx.mcmc(level, {"y": np.ones(5)}, kernel=kernel, num_warmup=20, num_samples=5, **sizes)
    last = posterior.draws["mean"][:, -1]
    assert len(np.unique(last)) == 8
    assert posterior.record.init == "random, in 2 superchains"


@pytest.mark.slow
def test_superchains_begin_where_they_are_told():
    mean = np.arange(8.0)
    given = phx.superchains(4, {"mean": mean})
    posterior = phx.mcmc(model, {"y": np.ones(5)}, **{**STILL, "num_chains": 8}, init=given)
    agree(posterior.draws["mean"][:, 0], np.repeat(mean[::2], 2))


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        (lambda: phx.superchains(1), ValueError, "2 or more"),
        (lambda: phx.superchains(2.0), TypeError, "whole number"),  # pyright: ignore[reportArgumentType]
        (lambda: phx.superchains(3), ValueError, "4 chains cannot be divided into 3 superchains"),
        (lambda: phx.superchains(2, phx.superchains(2)), TypeError, "give phx.superchains once"),
    ],
)
def test_superchains_that_cannot_be_are_refused(wrong, kind, words, sampler):
    with pytest.raises(kind, match=words):
        sampler.run(0, init=wrong())


@pytest.mark.slow
def test_a_run_begins_with_the_tuning_of_another():
    data, sizes = {"y": np.ones(5)}, {"num_chains": 4, "progress": False, "kernel": phx.hmc(3)}
    first = phx.mcmc(level, data, **sizes, num_warmup=200, num_samples=20)
    then = phx.mcmc(level, data, **sizes, num_warmup=0, num_samples=20, init=first, tuning=first)
    for one, other in zip(*(jax.tree.leaves(run.state.tuning) for run in (first, then)), strict=True):
        np.testing.assert_array_equal(one, other)
    tuned = phx.mcmc(level, data, **sizes, num_warmup=60, num_samples=20, tuning=first)
    assert tuned.warmup["step_size"][0] == first.stats["step_size"][0, 0]
    with pytest.raises(TypeError, match="expected a posterior"):
        phx.mcmc(level, data, **sizes, tuning=0.1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"drawn by phx\.hmc, and the kernel is phx\.rwmh"):
        phx.mcmc(level, data, **{**sizes, "kernel": phx.rwmh(0.5)}, tuning=first)
    with pytest.raises(ValueError, match="the posterior has other variables"):
        phx.mcmc(lambda: phx.sample("x", dist.Normal(0.0, 1.0)), **sizes, tuning=first)
    begun = []
    phx.mcmc(level, data, **sizes, num_warmup=60, num_samples=1, on_block=lambda block: begun.append(block.so_far()))  # pyright: ignore[reportOptionalCall]
    with pytest.raises(ValueError, match="still in warm-up"):
        phx.mcmc(level, data, **sizes, num_warmup=0, tuning=begun[0])


@pytest.mark.parametrize(
    "value, entry", [([1.0, 0.0, 0.0], "1"), ([0.5, 0.5, 0.0], "2"), ([[0.2, 0.3, 0.5], [0.0, 0.0, 1.0]], "1, 0")]
)
def test_a_start_on_the_boundary_of_a_simplex_is_refused(value, entry):
    def model():
        phx.sample("p", dist.Dirichlet(jnp.ones(np.shape(value))).to_event(np.ndim(value) - 1))

    words = (
        f"init: entry [{entry}] of the value of variable 'p' is 0, which is on the boundary of the simplex and has no "
        f"unconstrained position. Give positive numbers that sum to 1."
    )
    starts = {"p": np.array(value)}
    calls = [
        lambda: phx.mcmc(model, init=starts, num_samples=1, progress=False),
        lambda: phx.fit(model, phx.guides.mean_field(), init=starts, num_steps=1, progress=False),
        lambda: phx.maximize(model, init=starts),
    ]
    for call in calls:
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == words
