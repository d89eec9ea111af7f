"""Models that mix rows in regions where no chain begins are refused; models that do not are taken."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from tests.mesh.models import X, Y

import phalanx as phx


def level():
    return phx.sample("level", dist.Normal(0.0, 1.0))


def observe(mean, y):
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


def centred(y):
    return y - y.mean()


def a_step(x, y):
    pull = jnp.where(level() > 1.8, y.sum() * 0.1, 0.0)
    phx.factor("f", pull * jnp.ones_like(y))


def a_cond(x, y):
    observe(lax.cond(level() > 4, lambda: centred(y), lambda: y), y)


def observed_where(x, y):
    mu = level()
    observe(mu, jnp.where(mu > 4, centred(y), y))


def nested_steps(x, y):
    mu = level()
    inner = jnp.where(mu < 5, centred(y), y)
    observe(jnp.where(mu > 4, inner, y), y)


def nested_conds(x, y):
    mu = level()

    def inner():
        return lax.cond(mu > 6, lambda: jnp.sort(y), lambda: y)

    observe(lax.cond(mu > 4, inner, lambda: y), y)


def a_switch(x, y):
    number = jnp.where(level() > 4, 2, 0)
    observe(lax.switch(number, [lambda: y, lambda: y + 1, lambda: jnp.cumsum(y)]), y)


def a_select(x, y):
    mu = level()
    observe(lax.select_n(jnp.digitize(mu, jnp.array([-9.0, 9.0])), centred(y), y, centred(y)), y)


def a_threshold(x, y):
    observe(jnp.maximum(level() - 4.0, 0.0) * centred(y), y)


def a_clip(x, y):
    observe(jnp.clip(level(), 4.0, 9.0) * centred(y) - 4.0 * centred(y), y)


def a_relu(x, y):
    observe(jax.nn.relu(level() - 4.0) * centred(y), y)


def an_absolute_value(x, y):
    above = level() - 4.0
    observe((jnp.abs(above) + above) * centred(y), y)


def a_flag_as_a_number(x, y):
    observe((level() > 4) * centred(y), y)


def a_heaviside(x, y):
    observe(jnp.heaviside(level() - 4, 0.0) * centred(y), y)


def a_whole_part(x, y):
    observe(jnp.floor(level() / 18 + 0.5) * centred(y), y)


def level_of(name):
    return phx.sample(name, dist.HalfNormal(1.0))


def piecewise(x, y):
    mu = level()
    observe(jnp.piecewise(mu, [mu < -5, mu > 5], [lambda m: y.sum(), lambda m: y.mean(), lambda m: m]), y)


def in_a_scan(x, y):
    mu = level()

    def turn(total, column):
        return total + jnp.where(mu > 4, centred(column), column), None

    observe(lax.scan(turn, jnp.zeros(y.shape), x.T)[0], y)


def in_a_jitted_function(x, y):
    observe(jax.jit(lambda mu: jnp.where(mu > 4, centred(y), y))(level()), y)


def a_gate_by_rows(x, y):
    observe(jnp.where(level() * x[:, 0] > 90, y.mean(), y), y)


def a_while_loop(x, y):
    mu = lax.stop_gradient(level())
    trips = lax.while_loop(lambda c: c[0] < mu - 4, lambda c: (c[0] + 1, c[1] + y.mean()), (0.0, 0.0))[1]
    observe(level_of("b") + trips, y)


def deterministic(x, y):
    mu = level()
    observe(mu, y)
    phx.deterministic("rows", jnp.where(mu > 4, centred(y), y))


RARE = [
    a_step, a_cond, observed_where, nested_steps, nested_conds, a_switch, a_select, a_threshold, a_clip, a_relu,
    an_absolute_value, a_flag_as_a_number, a_heaviside, a_whole_part, piecewise, in_a_scan, in_a_jitted_function,
    a_gate_by_rows, a_while_loop, deterministic,
]  # fmt: skip


def few_and_all(models, shown):
    return [pytest.param(m, id=m.__name__, marks=() if m in shown else pytest.mark.slow) for m in models]


SHOWN = [a_step, a_cond, observed_where, a_threshold, a_flag_as_a_number, in_a_scan, a_while_loop]


@pytest.mark.parametrize("model", few_and_all(RARE, SHOWN))
def test_rows_that_mix_in_a_rare_region_are_refused(model, mesh_of):
    with pytest.raises(ValueError, match="in a branch .* that other values"):
        phx.Target(model, phx.shard({"x": X, "y": Y}, mesh_of(1, 2)), check="strict")


# -- not proved, and right ----------------------------------------------------------------------------------------


def scanned(of, mu, y, start=0.0):
    """A sum of terms that the proof does not follow: row by row, from a number."""
    return lax.scan(lambda total, row: (total + of(mu, row), None), start, y)[0]


def steps_by_row(x, y):
    phx.factor("y", scanned(lambda mu, row: jnp.where(mu > 1.8, -mu * row**2, -jnp.abs(row - mu)), level(), y))


def conds_by_row(x, y):
    def density(mu, row):
        return lax.cond(mu > 4, lambda: -((row - mu) ** 2), lambda: -jnp.log1p((row - mu) ** 2))

    phx.factor("y", scanned(density, level(), y))


def rows_by_number(x, y):
    mu = level()
    total = lax.fori_loop(
        0, len(y), lambda i, t: t + jnp.where(mu > y[i], -((y[i] - mu) ** 2), y[i - len(y)] - mu), 0.0
    )
    phx.factor("y", total)


def logarithms(x, y):
    def of(mu, row):
        return jnp.where(mu > 0, jnp.log(jnp.where(mu > 0, mu, 1.0)), -mu) - jnp.maximum(row - mu, 0.0)

    phx.factor("y", scanned(of, level(), y))


def mixture_by_row(x, y):
    def of(mu, row):
        return jnp.logaddexp(-((row - mu) ** 2), -((row + mu) ** 2)) + jax.nn.relu(mu - 1.0) * row

    phx.factor("y", scanned(of, level(), y))


def binned_by_row(x, y):
    table = phx.sample("table", dist.Normal(0.0, 1.0).expand([3]))
    mu = level()
    phx.factor("y", scanned(lambda mu, row: table[jnp.digitize(mu, jnp.array([-1.0, 1.0]))] * row, mu, y))


RIGHT = [steps_by_row, conds_by_row, rows_by_number, logarithms, mixture_by_row, binned_by_row]


@pytest.mark.parametrize("model", few_and_all(RIGHT, [steps_by_row, rows_by_number]))
def test_branches_that_keep_rows_apart_are_taken(model, mesh_of):
    rows = phx.Target(model, phx.shard({"x": X, "y": Y}, mesh_of(1, 4)), check="strict").rows
    assert rows.checked == ("y",)


# -- choices by the place of a device -----------------------------------------------------------------------------


def a_row_taken(x, y):
    z = phx.sample("z", dist.Normal(y, 1.0))
    phx.deterministic("third", phx.take_rows(z, [2, len(X) - 1]))


def a_row_taken_by_sums(x, y):
    z = phx.sample("z", dist.Normal(y, 1.0))
    first = lax.psum(jnp.where(lax.axis_index("data") == 0, z[0], 0.0), "data")
    phx.deterministic("first", first)


def a_row_taken_in_a_cond(x, y):
    z = phx.sample("z", dist.Normal(y, 1.0))
    mine = lax.cond(lax.axis_index("data") == 0, lambda: z[0], lambda: jnp.zeros(()))
    phx.deterministic("first", lax.psum(mine, "data"))


def a_row_taken_by_turns(x, y):
    z = phx.sample("z", dist.Normal(y, 1.0))
    trips = jnp.where(lax.axis_index("data") == 0, 1, 0)
    mine = lax.while_loop(lambda c: c[0] < trips, lambda c: (c[0] + 1, c[1] + z[0]), (0, jnp.zeros(())))[1]
    phx.deterministic("first", lax.psum(mine, "data"))


def a_row_of_data_above(x, y):
    mu = level()
    observe(jnp.maximum(mu, phx.take_rows(y, [0])[0]), y)


TAKEN = [a_row_taken, a_row_taken_by_sums, a_row_taken_in_a_cond, a_row_taken_by_turns, a_row_of_data_above]


@pytest.mark.parametrize("model", few_and_all(TAKEN, [a_row_taken, a_row_taken_in_a_cond]))
def test_choices_by_the_place_of_a_device_are_not_forced(model, mesh_of):
    target = phx.Target(model, phx.shard({"x": X, "y": Y}, mesh_of(1, 4)), check="strict")
    one = phx.Target(model, phx.shard({"x": X, "y": Y}, mesh_of(1, 1)))
    position = one.initial_position(jax.random.key(0))
    np.testing.assert_allclose(target.log_density(position), one.log_density(position), rtol=1e-5)
    found, wanted = target.constrain(position), one.constrain(position)
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5)


def a_row_taken_rarely(x, y):
    mu = level()
    observe(jnp.where(mu > 4, y * phx.take_rows(centred(y), [0]), y), y)


def a_mean_of_a_device_rarely(x, y):
    mu = level()
    where = lax.axis_index("data") == 0
    observe(jnp.where(where & (mu > 4), y.mean(), y), y)


def a_device_in_a_rare_cond(x, y):
    mu = level()
    observe(lax.cond(mu > 4, lambda: jnp.where(lax.axis_index("data") == 0, y.mean(), y), lambda: y), y)


def a_rare_maximum_by_devices(x, y):
    z = phx.sample("z", dist.Normal(y, 1.0))
    phx.deterministic("third", phx.take_rows(jnp.where(z > 40, z.mean(), z), [2]))


MIXED = [a_row_taken_rarely, a_mean_of_a_device_rarely, a_device_in_a_rare_cond, a_rare_maximum_by_devices]


@pytest.mark.parametrize("model", few_and_all(MIXED, [a_mean_of_a_device_rarely, a_rare_maximum_by_devices]))
def test_rows_that_mix_beside_choices_by_the_place_are_refused(model, mesh_of):
    with pytest.raises(ValueError, match="in a branch .* that other values"):
        phx.Target(model, phx.shard({"x": X, "y": Y}, mesh_of(1, 2)), check="strict")


# -- what draws alone reach ---------------------------------------------------------------------------------------


def a_smooth_gate(x, y):
    mu = phx.sample("mu", dist.Normal(60.0, 5.0))
    gate = jnp.exp(-(((mu - 60.0) / 1.5) ** 2))  # zero in float64, too, where chains begin
    phx.factor("y", 1e-3 * gate * y.sum() * jnp.ones_like(y))


@pytest.mark.parametrize("keep", [None, []], ids=["draws", "last positions"])
def test_a_difference_at_draws_spoils_the_verdict(keep, mesh_of):
    mesh = mesh_of(1, 2)
    with pytest.warns(UserWarning, match="The draws of this run are wrong. Variable 'y'"):
        posterior = phx.mcmc(
            a_smooth_gate, phx.shard({"x": X, "y": Y}, mesh), kernel=phx.rwmh(20.0), num_chains=8, num_warmup=0,
            num_samples=100, init={"mu": jnp.linspace(-20.0, 0.0, 8)}, keep=keep, mesh=mesh, progress=False,
            reducers={} if keep is None else {"m": phx.reducers.moments()},
        )  # fmt: skip
    assert "shares differ" in [finding.topic for finding in posterior.record.findings]
    assert not posterior.record.passed


def one_of_many():
    """Positions of 300 chains, of which one, in the middle, is where the rows mix."""
    at = np.full(300, -20.0, np.float32)
    at[101] = 60.0
    return {"mu": jnp.asarray(at)}


def test_every_chain_is_looked_at(mesh_of):
    mesh = mesh_of(1, 2)
    with pytest.warns(UserWarning, match="The draws of this run are wrong. Variable 'y'"):
        phx.mcmc(
            a_smooth_gate, phx.shard({"x": X, "y": Y}, mesh), kernel=phx.rwmh(0.01), num_chains=300, num_warmup=0,
            num_samples=1, init=one_of_many(), keep=[], reducers={"m": phx.reducers.moments()}, mesh=mesh,
            progress=False,
        )  # fmt: skip


def test_a_stream_looks_at_its_last_draws(mesh_of):
    mesh = mesh_of(1, 2)
    blocks = phx.stream(
        a_smooth_gate, phx.shard({"x": X, "y": Y}, mesh), kernel=phx.rwmh(0.01), num_chains=300, num_warmup=0,
        num_samples=4, init=one_of_many(), mesh=mesh, progress=False,
    )  # fmt: skip
    next(blocks)
    with pytest.warns(UserWarning, match="The draws of this run are wrong. Variable 'y'"):
        list(blocks)


def test_particles_are_looked_at(mesh_of):
    def model(x, y):
        mu = phx.sample("mu", dist.Normal(60.0, 1.0))
        gate = jnp.exp(-(((mu - 60.0) / 1.5) ** 2))
        observe(mu * x[:, 0] * 1e-3, y)
        phx.factor("f", 1e-3 * gate * y.sum() * jnp.ones_like(y))

    mesh = mesh_of(1, 2)
    with pytest.warns(UserWarning, match="The draws of this run are wrong. Variable 'f'"):
        particles = phx.smc(model, phx.shard({"x": X, "y": Y}, mesh), num_particles=16, mesh=mesh, progress=False)
    assert "shares differ" in [finding.topic for finding in particles.record.findings]


def test_the_record_names_the_chains_that_were_looked_at(mesh_of):
    mesh = mesh_of(1, 2)
    posterior = phx.mcmc(
        steps_by_row, phx.shard({"x": X, "y": Y}, mesh), kernel=phx.rwmh(0.1), num_chains=3, num_warmup=0,
        num_samples=2, mesh=mesh, progress=False,
    )  # fmt: skip
    assert any("also at draws of all 3 chains" in sentence for sentence in posterior.record.passed)
