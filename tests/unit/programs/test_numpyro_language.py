"""NumPyro's language: the log densities it has there, in any mixture with ours and any nesting; what is refused."""

from __future__ import annotations

import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro import handlers
from numpyro.contrib.control_flow import cond, scan
from numpyro.contrib.module import flax_module, random_flax_module
from numpyro.infer.reparam import LocScaleReparam, Reparam
from numpyro.infer.util import initialize_model, log_density, potential_energy
from numpyro.primitives import mutable
from tests.unit.programs import numpyro_models as models

import phalanx as phx

Y = models.Y


@pytest.fixture(autouse=True)
def numpyro_promotes():
    with jax.numpy_rank_promotion("allow"):
        yield


QUICK = {"branches"}
CASES = [pytest.param(m, marks=[] if m.__name__ in QUICK else pytest.mark.slow, id=m.__name__) for m in models.MODELS]


@pytest.mark.parametrize("model", CASES)
def test_a_model_has_the_log_density_it_has_there(model, monkeypatch):
    monkeypatch.setitem(models.language, "sample", numpyro.sample)
    position, values = models.random_values(model, 3)
    latent = {name: values[name] for name in position}
    expected = log_density(model, (), {}, latent)[0], -potential_energy(model, (), {}, position)
    for language in (numpyro.sample, models.mixed):
        monkeypatch.setitem(models.language, "sample", language)
        found = phx.log_joint(model)(latent), phx.Target(model).log_density(position)
        np.testing.assert_allclose(found, np.asarray(expected), rtol=2e-5, atol=1e-4)


LAYERS = {
    "plate": lambda inner, i: _within(lambda: numpyro.plate(f"plate{i}", 2 + i, dim=-1 - i), inner),
    "mask": lambda inner, i: _within(lambda: handlers.mask(mask=i % 2 == 0), inner),
    "scale": lambda inner, i: _within(lambda: handlers.scale(scale=1.5 + i), inner),
    "scope": lambda inner, i: _within(lambda: handlers.scope(prefix=f"s{i}"), inner),
    "phx.scale": lambda inner, i: phx.scale(inner, 2.0 + i),
    "phx.trace": lambda inner, i: phx.trace(inner),
    "infer_config": lambda inner, i: handlers.infer_config(inner, config_fn=lambda site: {"mine": i}),
    "handlers.trace": lambda inner, i: handlers.trace(inner),
}


def _within(context, inner):
    def run():
        with context():
            inner()

    return run


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(sorted(LAYERS)), max_size=5), st.booleans())
@pytest.mark.slow
def test_handlers_of_both_kinds_nest_in_any_order(layers, ours):
    theirs = [layer for layer in layers if not layer.startswith("phx")]
    factor = np.prod([2.0 + i for i, layer in enumerate(layers) if layer == "phx.scale"])

    def build(keep, sample, term):
        def innermost():
            sample("x", dist.Normal(0.3, 1.0), obs=0.7)
            term("f", jnp.asarray(-0.2))

        for i, layer in enumerate(layers):
            innermost = LAYERS[layer](innermost, i) if layer in keep else innermost
        return innermost

    expected = log_density(build(theirs, numpyro.sample, numpyro.factor), (), {}, {})[0]
    kind = (phx.sample, phx.factor) if ours else (numpyro.sample, numpyro.factor)
    found = phx.log_joint(build(layers, *kind))({})
    np.testing.assert_allclose(found, factor * np.asarray(expected), rtol=1e-5)


def test_handlers_nest_in_the_order_of_entering():
    def part():
        return numpyro.sample("x", dist.Normal(0.0, 1.0))

    scoped = handlers.scope(phx.condition(part, {"x": 2.0}), prefix="a")
    assert phx.trace(scoped)()["a/x"].value == 2.0
    outside = phx.condition(handlers.scope(part, prefix="a"), {"a/x": 3.0})
    assert phx.trace(outside)()["a/x"].value == 3.0
    with handlers.seed(rng_seed=0), handlers.trace() as found:
        inner = phx.trace(handlers.condition(part, {"x": 1.0}))()
    assert inner["x"].observed and found["x"]["is_observed"]
    with phx.tape() as outer, handlers.block(), phx.tape() as hidden:
        phx.condition(part, {"x": 1.0})()
    assert list(hidden) == ["x"] and not outer


def test_a_reparameterisation_outside_of_ours_keeps_masks_and_scales_inside():
    def part():
        with numpyro.plate("N", 3), handlers.scale(scale=2.0):
            return phx.sample("x", dist.Normal(1.0, 2.0))

    config: dict[str, Reparam] = {"x": LocScaleReparam(0)}
    values = {"x_decentered": jnp.array([0.1, 0.2, 0.3])}
    expected = log_density(handlers.reparam(part, config=config), (), {}, values)[0]
    for inside in (part, phx.trace(part), phx.scale(part, 1.0)):
        program = handlers.reparam(inside, config=config)
        assert phx.log_joint(program)(values) == pytest.approx(float(expected), rel=1e-5)


def test_a_program_of_ours_is_a_numpyro_model():
    def model():
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        phx.deterministic("double", 2 * x)
        phx.factor("f", -x)

    found = handlers.trace(handlers.seed(model, 0)).get_trace()
    assert list(found) == ["x", "double", "f"] and found["double"]["value"] == 2 * found["x"]["value"]
    expected = phx.log_joint(model)({"x": jnp.array(0.3)})
    assert log_density(model, (), {}, {"x": jnp.array(0.3)})[0] == pytest.approx(float(expected))


def test_numpyros_intervention_cuts_what_comes_after():
    def model():
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(a, 1.0), obs=2.0)

    done = handlers.do(phx.trace(model), {"a": jnp.array(5.0)})
    assert phx.log_joint(done)({"a": 0.0}) == pytest.approx(
        float(dist.Normal(0.0, 1.0).log_prob(jnp.array([0.0, 3.0])).sum())
    )


def test_subsamples_and_hidden_variables_have_keys_from_our_seed():
    def model():
        with numpyro.plate("N", 8, subsample_size=3) as rows:
            assert rows.shape == (3,)
        with handlers.block():
            return numpyro.sample("u", dist.Normal(0.0, 1.0))

    assert phx.seed(model, 0)() == phx.seed(model, 0)() != phx.seed(model, 1)()


def support_of_a_step():
    scan(lambda c, y: (numpyro.sample("state", dist.TruncatedNormal(c, 1.0, low=c)), None), 0.0, jnp.asarray(Y))


def sampled_in_lax_scan():
    jax.lax.scan(lambda c, y: (phx.sample("state", dist.Normal(c, 1.0)), None), jnp.zeros(()), jnp.asarray(Y))


def latent_in_cond():
    def side(_):
        return numpyro.sample("side", dist.Normal(0.0, 1.0))

    cond(True, side, side, None)


def subsampled():
    with numpyro.plate("rows", 8, subsample_size=3) as rows:
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=Y[rows])


def same_dim():
    with numpyro.plate("a", 2, dim=-1), numpyro.plate("b", 2, dim=-1):
        numpyro.sample("x", dist.Normal(0.0, 1.0))


def continuous_base():
    numpyro.sample("x", dist.ZeroInflatedDistribution(dist.Gamma(2.0, 1.0), gate=0.5), obs=1.0)


REFUSED = [
    (continuous_base, "The base of a zero-inflated distribution must be discrete. For positive numbers with zeros"),
    (support_of_a_step, "Variable 'state' inside of numpyro.contrib.control_flow (scan): its support depends"),
    (latent_in_cond, "Variable 'side' is latent in a branch of numpyro.contrib.control_flow.cond"),
    (subsampled, "plate 'rows': 3 of 8 rows would be drawn at random"),
    (same_dim, "Two plates, one inside of the other, have the same dim"),
    (lambda: numpyro.param("theta", 1.0), "Site 'theta' is a numpyro.param"),
    (lambda: numpyro.module("net", (None, None), (3,)), "numpyro.module 'net': networks whose weights are parameters"),
    (lambda: mutable("state", {}), "Site 'state' is a numpyro.mutable"),  # pyright: ignore[reportArgumentType]
    (lambda: numpyro.prng_key(), "The program asks for a random key"),
    (lambda: handlers.block(numpyro.sample)("x", dist.Normal(0.0, 1.0)), "The program asks for a random key"),
    (lambda: numpyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"}), "Variable 'z' is discrete"),
    (lambda: phx.sample("d", dist.ProjectedNormal(jnp.ones(3))), "Variable 'd': no bijection is known"),
    (lambda: phx.sample("x", dist.Normal(0.0, 1.0).expand([0])), "has no coordinates to move"),
    (lambda: numpyro.deterministic("pair", {"a": 1.0}), "The deterministic value 'pair' must be an array"),  # pyright: ignore[reportArgumentType]
    (lambda: jax.vmap(lambda a: phx.sample("x", dist.Normal(a, 1.0)))(Y), "Variable 'x' is sampled inside of a"),
    (lambda: jax.jit(lambda: numpyro.sample("x", dist.Normal(0.0, 1.0)))(), "Variable 'x' is sampled inside of a"),
    (lambda: jax.lax.map(lambda a: phx.factor("f", a), Y), "Variable 'f' is sampled inside of a function"),
    (sampled_in_lax_scan, "z = phx.sample('state_steps', dist.Normal(0.0, 1.0).expand([n])), and have jax.lax.scan"),
    (lambda: numpyro.sample("y", dist.Normal(jnp.zeros(4), 1.0), obs=jnp.zeros(3)), "Variable 'y': the value has"),
]  # fmt: skip


@pytest.mark.parametrize("model, words", REFUSED)
def test_meaningless_primitives_are_refused_by_name(model, words):
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        phx.Target(model)
    with handlers.trace() as left:  # and nothing is left on NumPyro's stack
        numpyro.deterministic("after", 1.0)
    assert list(left) == ["after"]


def test_the_way_out_of_a_latent_chain_in_time_has_its_density():
    """Steps sampled at once, and the chain computed from them, against NumPyro's scan up to the Jacobian."""

    def in_scan():
        def step(before, y):
            now = numpyro.sample("state", dist.Normal(0.8 * jnp.asarray(before), 0.5))
            numpyro.sample("y", dist.Normal(now, 1.0), obs=y)
            return now, now

        scan(step, jnp.float32(1.0), jnp.asarray(Y))

    def at_once():
        z = phx.sample("state_steps", dist.Normal(0.0, 1.0).expand([len(Y)]))

        def step(before, z):
            now = 0.8 * before + 0.5 * z
            return now, now

        _, state = jax.lax.scan(step, 1.0, z)
        phx.deterministic("state", state)
        phx.sample("y", dist.Normal(state, 1.0), obs=Y)

    z = np.random.default_rng(0).normal(size=len(Y)).astype(np.float32)
    path = phx.trace(phx.condition(at_once, {"state_steps": z}))()["state"].value
    theirs, _ = log_density(in_scan, (), {}, {"state": path})
    ours = phx.log_joint(at_once)({"state_steps": z})
    assert float(ours) - len(Y) * np.log(0.5) == pytest.approx(float(theirs), rel=1e-5)


def test_a_thread_beside_another_sees_its_own_variables_or_is_refused():
    found = {}

    def ours():
        found["ours"] = list(phx.trace(phx.seed(lambda: phx.sample("x", dist.Normal(0.0, 1.0)), 0))())

    def theirs():
        try:
            phx.trace(phx.seed(lambda: numpyro.sample("x", dist.Normal(0.0, 1.0)), 0))()
        except RuntimeError as error:
            found["theirs"] = str(error)

    with phx.tape() as variables:
        for work in (ours, theirs):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert found["ours"] == ["x"] and not variables
    assert found["theirs"].startswith("numpyro.sample 'x': NumPyro has one stack of handlers for all threads")


def test_a_mask_and_a_plate_over_rows_on_devices():
    def model(y, seen):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", y.shape[0]), handlers.mask(mask=seen):
            z = phx.sample("z", dist.Normal(mu, 1.0))
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    data, mesh = {"y": Y[:7], "seen": models.MASK[:7]}, phx.make_mesh(chain=1, data=2, devices=jax.devices()[:2])
    whole = phx.Target(model, data)
    spread = phx.Target(model, phx.shard(data, mesh))
    position = whole.initial_position(jax.random.key(0))
    np.testing.assert_allclose(spread.log_density(position), whole.log_density(position), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("sample", [numpyro.sample, phx.sample])
@pytest.mark.filterwarnings("ignore:init_to_uniform")  # it begins with the value
def test_numpyro_infers_what_its_substitute_sets(sample):
    """NumPyro's inference substitutes once more, outside; so a value of its `substitute` or `replay` fixes nothing."""

    def model(y):
        t = sample("t", dist.HalfNormal(2.0))
        sample("y", dist.Normal(t, 1.0), obs=y)

    replayed = handlers.trace(handlers.seed(model, 0)).get_trace(Y)
    for program in (handlers.substitute(model, {"t": 2.0}), handlers.replay(model, replayed)):  # pyright: ignore[reportArgumentType]
        assert list(initialize_model(jax.random.key(0), program, model_args=(Y,)).param_info.z) == ["t"]
        target, plain = phx.Target(program, {"y": Y}), phx.Target(model, {"y": Y})
        for u in (-1.0, 0.3):
            at = {"t": jnp.array(u)}
            np.testing.assert_allclose(target.log_density(at), plain.log_density(at), rtol=1e-6)
        value = 2.0 if isinstance(program, handlers.substitute) else replayed["t"]["value"]
        assert phx.trace(program)(Y)["t"].value == value
    fit = phx.fit(handlers.substitute(model, {"t": 2.0}), phx.guides.laplace(), {"y": Y}, progress=False)  # pyright: ignore[reportArgumentType]
    assert list(fit.posterior(3).draws) == ["t"]


def test_a_numpyro_model_runs_and_what_is_given_is_fixed():
    def model(y=None, rows=8):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = phx.sample("tau", dist.HalfNormal(2.0))
        with numpyro.plate("N", rows if y is None else y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, tau), obs=y)

    data, given = {"y": Y}, {"tau": 1.5}
    for program in (phx.substitute(model, given), phx.condition(model, given), phx.do(model, given),
                    phx.seed(phx.substitute(model, given), 0), phx.substitute(phx.seed(model, 0), given),
                    phx.substitute(handlers.substitute(model, {"tau": 9.0}), given),  # pyright: ignore[reportArgumentType]
                    handlers.substitute(phx.substitute(model, given), {"mu": jnp.array(3.0)})):  # fmt: skip
        assert list(phx.Target(program, data).initial_position(jax.random.key(0))) == ["mu"]
    own = phx.Target(phx.substitute(model, given), data).log_density({"mu": jnp.array(0.4)})
    joint = phx.log_joint(model)({"mu": 0.4, "tau": 1.5}, **data)
    assert own == pytest.approx(float(joint), rel=1e-5)
    with pytest.raises(ValueError, match="Variable 'tau' has no value and no key"):
        phx.Target(phx.block(model, ["tau"]), data)
    prior = phx.mcmc(model, {"rows": 2}, kernel=phx.rwmh(0.5), num_warmup=20, num_samples=20, progress=False)
    assert prior.record.passed == ("The model observes no data: these are draws from the prior.",)


@pytest.mark.slow
def test_random_modules_of_numpyros_are_inferred():
    """A network with priors on its weights: the log density is NumPyro's own."""
    x, y = np.linspace(-1.0, 1.0, 5, dtype=np.float32)[:, None], np.ones(5, np.float32)
    dense = linen.Dense(1)

    def model(x, y, prior=None):
        prior = dist.Normal(0.0, 0.5) if prior is None else prior
        net = random_flax_module("net", dense, prior, input_shape=(1,))
        numpyro.sample("y", dist.Normal(net(x)[:, 0], 1.0), obs=y)

    values = {"net/kernel": jnp.full((1, 1), 0.3), "net/bias": jnp.full(1, -0.2)}
    expected = log_density(handlers.seed(model, 0), (x, y), {}, values)[0]
    np.testing.assert_allclose(phx.Target(model, {"x": x, "y": y}).log_density(values), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="the weights 'bias' have no prior"):
        phx.Target(lambda x, y: model(x, y, {"kernel": dist.Normal()}), {"x": x, "y": y})
    with pytest.raises(ValueError, match="networks whose weights are parameters of NumPyro are not supported"):
        phx.Target(lambda x: numpyro.sample("z", dist.Normal(flax_module("n", dense, input_shape=(1,))(x))), {"x": x})
