"""Models whose rows meet: in rare regions, by the place of a device, beside rows of variables, by their number.

They are the hardest that we have for data that are sharded over devices. `test_row_models.py` compares each with one
device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from tests.mesh.models import X, Y

import phalanx as phx


class Model(NamedTuple):
    """A model with its data.

    Attributes:
        program: the model.
        data: its arguments; the first rows of each array are used.
        sizes: devices of the mesh along `chain`, `data` and `model`.
        axes: mesh axes of arguments that are not sharded over `data` alone.
    """

    program: Callable[..., Any]
    data: dict[str, Any]
    sizes: tuple[int, int, int] = (1, 4, 1)
    axes: dict[str, Any] | None = None


XY = {"x": X, "y": Y}


def level():
    return phx.sample("level", dist.Normal(0.0, 1.0))


def observe(mean, y):
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


def centred(y):
    return y - y.mean()


# -- rows that mix where the level is high ------------------------------------------------------------------------


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
    observe(phx.sample("b", dist.HalfNormal(1.0)) + trips, y)


def deterministic(x, y):
    mu = level()
    observe(mu, y)
    phx.deterministic("rows", jnp.where(mu > 4, centred(y), y))


# -- terms row by row, with branches ------------------------------------------------------------------------------


def scanned(of, mu, y, start=0.0):
    """Return a sum of terms row by row, from a number."""
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


# -- choices by the place of a device, which has all rows ---------------------------------------------------------


def a_row_taken(x, y):
    z = phx.sample("z", dist.Normal(y, 1.0))
    phx.deterministic("third", phx.take_rows(z, [2, len(y) - 1]))


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
    phx.deterministic("third", phx.take_rows(jnp.where(z > 1, z.mean(), z), [2]))


# -- rows that mix everywhere -------------------------------------------------------------------------------------


def less_the_mean_of_x(x, y):
    observe(level() * (x[:, 0] - x[:, 0].mean()), y)


def standardised(x, y):
    observe(level() * x[:, 0] / x[:, 0].std(), y)


def the_row_before(x, y):
    phx.sample("y", dist.Normal(level() * y[:-1], 1.0), obs=y[1:])


def cumulative(x, y):
    observe(level() * jnp.cumsum(x[:, 0]), y)


def first_row(x, y):
    observe(level() + x[0, 0], y)


def softmax_over_rows(x, y):
    phx.factor("y", jnp.sum(y * log_softmax(level() * x[:, 0])))


def log_softmax(x):
    return x - jnp.log(jnp.sum(jnp.exp(x)))


def log_of_a_sum(x, y):
    phx.factor("y", jnp.log(jnp.sum(jnp.exp(level() * y))))


def mean_of_terms(x, y):
    phx.factor("y", len(y) * jnp.mean(dist.Normal(level(), 1.0).log_prob(y)))


def walk(x, y):
    """A random walk over the rows: each latent variable follows the one before."""
    path = phx.sample("path", dist.Normal(0.0, 1.0).expand([y.shape[0]]))
    observe(level() + jnp.cumsum(path), y)


ONES = np.ones(3, np.float32)


@jax.jit
def less_the_mean(w, y):
    return jnp.sum(w * ONES) + y - jnp.sum(y.mean() * ONES)


def centred_within_jit(x, y):
    observe(less_the_mean(level(), y), y)


def centred_within_branches(x, y):
    w = level()
    mean = lax.cond(w > 0, lambda w: less_the_mean(w, y), lambda w: less_the_mean(w, y) - jnp.sum(w * ONES), w)
    observe(mean, y)


def a_count_of_rows(x, y):
    count = np.array([1.0, y.shape[0]], np.float32)
    phx.factor("y", jnp.sum(jax.jit(lambda w: -w * count)(level())))
    phx.sample("rows", dist.Normal(jnp.zeros(y.shape[0]), 1.0), obs=y)
    phx.deterministic("number", y.shape[0])


def fixed_groups(x, y):
    y = jnp.concatenate([y[:8], y, y[-8:]])[: len(y) // 8 * 8]
    of_groups = level() * jnp.mean(y.reshape(-1, 8), axis=1, keepdims=True)
    phx.factor("apart", -jnp.sum((y.reshape(-1, 8) - of_groups) ** 2))
    phx.factor("mixed", -(jnp.sum(level_of_group() - jnp.mean(y.reshape(-1, 8), axis=1)) ** 2))


def level_of_group():
    return phx.sample("of group", dist.Normal(0.0, 1.0))


@jax.custom_vjp
def clipped_gradient(x):
    return x


clipped_gradient.defvjp(lambda x: (x, None), lambda _, g: (g / jnp.linalg.norm(g),))


def a_gradient_that_mixes_rows(x, y):
    observe(clipped_gradient(level() * x[:, 0]), y)


def never_finite(x, y):
    phx.factor("y", jnp.cumsum(y) * jnp.nan * level())


def a_last_row_of_density_zero(x, y):
    mu = level()
    impossible = jnp.arange(len(y)) == len(y) - 1
    phx.factor("f", jnp.cumsum(jnp.where(impossible, -jnp.inf, -((y - mu) ** 2)))[-1])


# -- data that are prepared in the model --------------------------------------------------------------------------

RNG = np.random.default_rng(3)
TABLE = {
    "t": np.float32(1.6e9) + RNG.uniform(0, 2e6, 64).astype(np.float32),
    "income": RNG.lognormal(10, 1, 64).astype(np.float32),
    "x": np.where(RNG.random((64, 2)) < 0.1, np.nan, RNG.normal(size=(64, 2))).astype(np.float32),
    "year": RNG.integers(1950, 2020, 64).astype(np.float32),
    "code": RNG.integers(0, 6, 64),
    "image": RNG.uniform(size=(64, 8, 8)).astype(np.float32),
    "y": RNG.normal(size=64).astype(np.float32),
}


def clipped(v):
    return jnp.clip(v, v.mean() - 2 * v.std(), v.mean() + 2 * v.std())


def standard(v):
    return (v - v.mean()) / v.std()


PREPARED = {
    "time since the first": lambda d: (d["t"] - d["t"].min()) / 86400,
    "income less its mean": lambda d: (d["income"] - d["income"].mean()) / 1e4,
    "imputed by the mean": lambda d: jnp.where(jnp.isnan(d["x"]), jnp.nanmean(d["x"], 0)[None], d["x"]).sum(1),
    "clipped at two deviations": lambda d: clipped(d["income"] / 1e4),
    "logarithms, standardised": lambda d: standard(jnp.log(d["year"] - 1900)),
    "sorted": lambda d: jnp.sort(d["y"], 0),
    "the state before": lambda d: jnp.concatenate([d["y"][:1], d["y"][:-1]]),
    "counts of duplicates": lambda d: (d["code"][:, None] == d["code"][None]).sum(1),
    "less the mean image": lambda d: (d["image"] - d["image"].mean(0)[None]).sum((1, 2)),
    "the number of the row": lambda d: jnp.arange(d["y"].shape[0]) / 10,
}


def prepared(function):
    def model(**data):
        values = phx.deterministic("prepared", function(data))
        phx.sample("y", dist.Normal(level() * values, 1.0), obs=data["y"])

    return model


# -- programs that see the number of rows, or as many as devices --------------------------------------------------

EIGHT = RNG.normal(size=8).astype(np.float32)
"""One row for each of eight devices."""
MANY = RNG.normal(size=64).astype(np.float32)
CODES = RNG.integers(0, 6, 64)


def weights(*shape):
    return phx.sample("w", dist.Normal(0.0, 1.0).expand(shape))


def widened_to_the_latent(x):
    phx.factor("y", jnp.sum(x * weights(8)))


def density_widened(x):
    phx.factor("y", dist.Normal(weights(8), 1.0).log_prob(x).sum())


def column_widened(x):
    with jax.numpy_rank_promotion("allow"):
        phx.factor("y", jnp.sum(x[:, None] * weights(8, 8)))


def index_times_the_number_of_rows(x, c):
    phx.factor("y", jnp.sum(x) + jnp.sum(jnp.take(weights(40), c * (x.shape[0] // 8), mode="clip")))


def row_numbers_of_few_digits(x):
    number = jnp.arange(x.shape[0] * 8, dtype=jnp.bfloat16).reshape(-1, 8)[:, 0]
    phx.factor("y", jnp.sum(number.astype(jnp.float32) * x) * weights())


def derivative_times_the_number_of_rows(x):
    @jax.custom_jvp
    def same(w):
        return w

    same.defjvp(lambda primals, tangents: (primals[0], tangents[0] * x.shape[0]))
    phx.sample("y", dist.Normal(same(weights()), 1.0).expand([x.shape[0]]), obs=x)


def callback_that_knows_the_number_of_rows(x):
    rows = x.shape[0]
    factor = jax.pure_callback(lambda v: np.float32(v * rows), jax.ShapeDtypeStruct((), jnp.float32), jnp.float32(2.0))
    phx.sample("y", dist.Normal(weights() * factor, 1.0).expand([rows]), obs=x)


# -- terms beside rows of variables -------------------------------------------------------------------------------


def latent_rows(x, y):
    z = phx.sample("z", dist.Normal(jnp.zeros(len(y)), 1.0))
    w = weights(2)
    phx.factor("f", lax.scan(lambda t, row: (t - (row[1] - row[0] @ w - row[2]) ** 2, None), 0.0, (x, y, z))[0])


def norm_of_latent_rows(x, y):
    z = phx.sample("z", dist.Normal(jnp.zeros(len(y)), 1.0))
    phx.factor("f", -(jnp.linalg.norm(z) ** 2))  # without a derivative at zero
    phx.sample("y", dist.Normal(z, 1.0), obs=y)


def positive_rows(x, y):
    z = phx.sample("z", dist.HalfNormal(1.0).expand([len(y)]))
    phx.factor("f", jnp.cumsum(jnp.log(z) - z * jnp.abs(y))[-1])
    phx.deterministic("product", z * y)


def several_terms(x, y):
    w = weights(2)
    s = phx.sample("s", dist.HalfNormal(1.0))
    phx.sample("y", dist.Normal(x @ w, s), obs=y)
    phx.factor("a", -(x @ w).sum())
    phx.factor("b", -x.shape[0] * jnp.log(s))
    phx.factor("c", lax.fori_loop(0, len(y), lambda i, t: t + y[i] * w[0], 0.0))
    phx.factor("d", -(w[1] ** 2))


def sums_of_latent_rows_over_devices(x, y):
    z = phx.sample("z", dist.Normal(jnp.zeros(len(y)), 1.0))
    phx.factor("f", -(lax.psum(z.sum(), "data") ** 2))
    phx.sample("y", dist.Normal(z - lax.pmean(y.mean(), "data"), 1.0), obs=y)


def values_of_rows_beside_a_sum_over_devices(x, y):
    w = weights(2)
    total = lax.psum(x.sum(0), "data")[None]
    observe((x - total / 16) @ w, y)
    phx.deterministic("rows", (x + total) @ w)
    phx.deterministic("apart", x @ w)


def several_numbers_of_rows(x, y):
    w = weights(2)
    phx.factor("f", jnp.cumsum(x @ w)[-1] + jnp.cumsum(y)[-1] * w[0])


def variables_of_several_numbers_of_rows(x, y):
    u = phx.sample("u", dist.Normal(0.0, 1.0).expand([x.shape[0]]))
    v = phx.sample("v", dist.HalfNormal(1.0).expand([y.shape[0]]))
    phx.sample("x", dist.Normal(u[:, None] * weights(2)[None], 1.0), obs=x)
    phx.sample("y", dist.Normal(jnp.log(v), 1.0), obs=y)
    phx.factor("f", 0.1 * jnp.outer(u, v).sum() - u[-1] * v[0])
    phx.deterministic("both", jnp.concatenate([u, v]))
    phx.deterministic("first", u[:5] * v[:5])


def along_two_axes(x, y):
    observe(level() * x[:, 0], y)
    phx.deterministic("product", x[:, 0] * y)


def rows_along_another_axis_than_the_data(x, y):
    rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([y.shape[0]]), axis="model")
    observe(rows - rows.mean(), y)


# -- variables and terms of other shapes than the rows --------------------------------------------------------------


def a_mean_of_squares(x, y):
    phx.factor("y", -13 * jnp.mean((y - level()) ** 2))


def a_row_of_terms(x, y):
    phx.factor("y", -((y - level()) ** 2)[None])


def an_event_of_rows(x, y):
    phx.sample("y", dist.Normal(level(), 1.0).expand([y.shape[0]]).to_event(1), obs=y)


def a_normal_of_all_rows(x, y):
    n = y.shape[0]
    phx.sample("y", dist.MultivariateNormal(jnp.full(n, level()), jnp.eye(n) + 0.5), obs=y)


def a_constant_size(x, y):
    observe(phx.sample("rows", dist.Normal(0.0, 1.0).expand([6]), axis="data").sum() + level(), y)


def a_variable_of_a_mean(x, y):
    observe(phx.sample("mean", dist.Normal(x.mean(), 1.0)), y)


def a_variable_of_one_row(x, y):
    observe(phx.sample("mean", dist.Normal(x.mean(), 1.0).expand([1]))[0], y)


def rows_behind(x, y):
    observe(phx.sample("rows", dist.Normal(0.0, 1.0).expand([2, y.shape[0]])).sum(0), y)


def a_deterministic_mean(x, y):
    phx.deterministic("mean", x.mean())
    observe(level(), y)


def the_root_of_the_number_of_rows(x, y):
    phx.factor("f", -jnp.sqrt(x.shape[0]) * level() ** 2)
    observe(level_of_group(), y)


def all_but_the_first_row(x, y):
    phx.factor("y", -jnp.cumsum(y[1:])[-1] * level())


def an_axis_beside_that_of_its_data(x, y):
    observe(phx.sample("rows", dist.Normal(x[:, 0], 1.0), axis="model"), y)


def rows_of_two_tables(x, y):
    rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([y.shape[0]]))
    phx.sample("x", dist.Normal(rows[::-1, None], 1.0).expand(x.shape), obs=x)
    observe(rows, y)


# -- discrete variables that are summed out -----------------------------------------------------------------------


def mixture(x, y):
    share = phx.sample("share", dist.Beta(2.0, 2.0))
    mean = phx.sample("mean", dist.Normal(jnp.array([-1.0, 1.0]), 1.0))
    group = phx.sample("group", dist.Bernoulli(share).expand(y.shape))
    phx.sample("y", dist.Normal(mean[group], 1.0), obs=y)


def chain_of_each_row(x, y):
    stay = phx.sample("stay", dist.Beta(2.0, 2.0))
    state = jnp.zeros(y.shape[0], jnp.int32)
    for t in range(2):
        state = phx.sample(f"state{t}", dist.Bernoulli(jnp.where(state == 1, stay, 1.0 - stay)))
        phx.sample(f"y{t}", dist.Normal(state * (t + 1.0), 1.0), obs=y)


def one_assignment_of_all_rows(x, y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    kind = phx.sample("kind", dist.Bernoulli(0.5))
    phx.sample("y", dist.Normal(mean + kind, 1.0), obs=y)


def cases(*programs):
    return {program.__name__.replace("_", " "): Model(program, XY) for program in programs}


MODELS = {
    **cases(
        a_step, a_cond, observed_where, nested_steps, nested_conds, a_switch, a_select, a_threshold, a_clip, a_relu,
        an_absolute_value, a_flag_as_a_number, a_heaviside, a_whole_part, piecewise, in_a_scan, in_a_jitted_function,
        a_gate_by_rows, a_while_loop, deterministic,
    ),
    **cases(steps_by_row, conds_by_row, rows_by_number, logarithms, mixture_by_row, binned_by_row),
    **cases(
        a_row_taken, a_row_taken_by_sums, a_row_taken_in_a_cond, a_row_taken_by_turns, a_row_of_data_above,
        a_row_taken_rarely, a_mean_of_a_device_rarely, a_device_in_a_rare_cond, a_rare_maximum_by_devices,
    ),
    **cases(
        less_the_mean_of_x, standardised, the_row_before, cumulative, first_row, softmax_over_rows, log_of_a_sum,
        mean_of_terms, walk, centred_within_jit, centred_within_branches, a_count_of_rows, fixed_groups,
        a_gradient_that_mixes_rows, never_finite, a_last_row_of_density_zero,
    ),
    **{name: Model(prepared(function), TABLE, (1, 8, 1)) for name, function in PREPARED.items()},
    **{program.__name__.replace("_", " "): Model(program, {"x": EIGHT}, (1, 8, 1))
       for program in (widened_to_the_latent, density_widened, column_widened)},
    "index times the number of rows": Model(index_times_the_number_of_rows, {"x": MANY, "c": CODES}, (1, 8, 1)),
    **{program.__name__.replace("_", " "): Model(program, {"x": MANY}, (1, 8, 1))
       for program in (row_numbers_of_few_digits, derivative_times_the_number_of_rows,
                       callback_that_knows_the_number_of_rows)},
    **cases(
        latent_rows, norm_of_latent_rows, positive_rows, several_terms, sums_of_latent_rows_over_devices,
        values_of_rows_beside_a_sum_over_devices,
    ),
    **cases(
        a_mean_of_squares, a_row_of_terms, an_event_of_rows, a_normal_of_all_rows, a_constant_size,
        a_variable_of_a_mean, a_variable_of_one_row, rows_behind, a_deterministic_mean,
        the_root_of_the_number_of_rows, all_but_the_first_row,
    ),
    **{f"{program.__name__.replace('_', ' ')}, over two axes":
       Model(program, XY, (1, 2, 4), {"x": ("data", "model"), "y": ("data", "model")})
       for program in (latent_rows, norm_of_latent_rows, positive_rows, several_terms)},
    **{f"{program.__name__.replace('_', ' ')}, {rows}": Model(program, {"x": X, "y": Y[:rows]})
       for program in (several_numbers_of_rows, variables_of_several_numbers_of_rows) for rows in (5, 12)},
    "along two axes": Model(along_two_axes, XY, (1, 2, 2), {"y": "model"}),
    "rows of two tables": Model(rows_of_two_tables, XY, (1, 2, 2), {"y": "model"}),
    "an axis beside that of its data": Model(an_axis_beside_that_of_its_data, XY, (1, 2, 2)),
    "rows along another axis": Model(rows_along_another_axis_than_the_data, XY, (1, 2, 4)),
    **{program.__name__.replace("_", " "): Model(phx.marginalize(program), XY, (1, 8, 1))
       for program in (mixture, chain_of_each_row, one_assignment_of_all_rows)},
}  # fmt: skip
