"""Many data sets in one run: each has the draws of a run of its own, whatever the others are."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx as phx
from phalanx.run.each.data_sets import DataSets
from phalanx.run.each.ragged import check_ragged, with_real_rows

SIZES = {"num_warmup": 60, "num_samples": 20, "progress": False}
ALONE = phx.nuts(metric="diagonal", relocate=False)
"""The kernel of a run on one data set that each data set of `phx.nuts()` equals."""


def line(x, y):
    slope = phx.sample("slope", dist.Normal(0.0, 5.0))
    scale = phx.sample("scale", dist.HalfNormal(3.0))
    phx.sample("y", dist.Normal(slope * x, scale), obs=y)


def regressions(sets: int, rows: int = 8) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(sets, rows))
    y = (random.normal(size=(sets, 1)) * x + random.normal(size=x.shape)) * 10.0 ** np.arange(-1, sets - 1)[:, None]
    return {"x": x, "y": y}


def table(sizes: dict[str, int]) -> Any:
    random = np.random.default_rng(1)
    subject = random.permutation(np.repeat(list(sizes), list(sizes.values())))
    return pd.DataFrame(
        {"subject": subject, "x": random.normal(size=len(subject)), "y": random.normal(size=len(subject))}
    )


def run_each(*arguments: Any, **options: Any) -> phx.Posteriors:
    posteriors: Any = phx.mcmc(*arguments, **options)
    return posteriors


def assert_same(posterior: phx.Posterior, other: phx.Posterior) -> None:
    for name, draws in posterior.draws.items():
        np.testing.assert_allclose(draws, other.draws[name], rtol=1e-2, atol=1e-2 * float(np.std(draws)))


@pytest.mark.slow
def test_a_warm_up_at_a_fixed_step_size_records_no_draws():
    data, options = regressions(3), {"kernel": phx.rwmh(step_size=0.3), "num_warmup": 60, "num_samples": 20}
    options |= {"keep": [], "reducers": {"moments": phx.reducers.moments()}, "progress": False}
    together = run_each(line, data, each={"x": 0, "y": 0}, seed=4, **options).reduced["moments"]["slope"]
    for number in range(3):
        of_one = {name: array[number] for name, array in data.items()}
        alone: Any = phx.mcmc(line, of_one, seed=4 + number, **options).reduced["moments"]["slope"]
        np.testing.assert_allclose(together.mean[number], alone.mean, rtol=1e-2, atol=1e-2)


@pytest.mark.slow
def test_data_sets_need_not_divide_over_the_devices(mesh_of):
    data = regressions(5)
    data["y"][4, 0] = np.inf  # copies of it fill the devices up
    options = {**SIZES, "each": {"x": 0, "y": 0}, "reducers": {"m": phx.reducers.moments()}}
    even, uneven = (run_each(line, data, mesh=mesh_of(devices, 1), **options) for devices in (1, 4))
    assert uneven.sets == even.sets and uneven.failed == even.failed and list(uneven.failed) == [4]
    for name, draws in even.draws.items():
        assert uneven.draws[name].shape == draws.shape == (5, 4, 20)
        np.testing.assert_allclose(uneven.draws[name], draws, rtol=1e-2, atol=1e-2 * float(np.nanstd(draws)))
    assert uneven.reduced["m"]["slope"].mean.shape == (5,)
    assert uneven.stats["num_steps"].shape == (5, 4, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel",
    [
        phx.nuts(),
        *(pytest.param(k, marks=pytest.mark.slow) for k in (phx.hmc(num_steps=4), phx.rwmh(), phx.nuts(step_size=0.1))),
    ],
)
def test_a_data_set_has_the_draws_of_a_run_of_its_own(kernel):
    data = regressions(4)
    posteriors = run_each(line, data, each={"x": 0, "y": 0}, kernel=kernel, seed=5, **SIZES)
    alone = {
        "nuts(max_depth=10, step_size=None)": ALONE,
        "hmc(num_steps=4, step_size=None)": phx.hmc(4, metric="diagonal"),
    }
    alone = alone.get(kernel.name, kernel)
    for number in (0, 3):
        own = {name: values[number] for name, values in data.items()}
        assert_same(phx.mcmc(line, own, kernel=alone, seed=5 + number, **SIZES), posteriors.of(number))


def test_a_data_set_that_waits_for_the_search_of_another_makes_no_draws():
    """The step size of the second is a thousandth of the first one's, so that its search takes ten rounds longer."""

    def normal(scale):
        phx.sample("x", dist.Normal(0.0, scale))

    options = {**SIZES, "kernel": phx.rwmh(), "mesh": phx.make_mesh(devices=jax.devices()[:1])}
    scales = np.array([1.0, 1e-3], np.float32)
    posteriors = run_each(normal, {"scale": scales}, each={"scale": 0}, seed=5, **options)
    for number, scale in enumerate(scales):
        assert_same(phx.mcmc(normal, {"scale": scale}, seed=5 + number, **options), posteriors.of(number))


@pytest.mark.slow
def test_data_sets_of_several_lengths_have_the_draws_of_their_own_rows():
    data = table({"a": 3, "b": 9, "c": 5, "d": 4})
    posteriors = run_each(line, data, each="subject", **SIZES)
    assert posteriors.sets == ("a", "b", "c", "d")
    for number, name in ((0, "a"), (2, "c")):
        own = data[data["subject"] == name][["x", "y"]]
        assert_same(phx.mcmc(line, own, kernel=ALONE, seed=number, **SIZES), posteriors.of(name))


def test_a_bad_data_set_is_named_and_spoils_no_other():
    data = regressions(4)
    good = run_each(line, data, each={"x": 0, "y": 0}, **SIZES)
    data["y"][2, 1] = np.nan
    reducers = {"m": phx.reducers.moments()}
    posteriors = run_each(line, data, each={"x": 0, "y": 0}, reducers=reducers, **SIZES)
    assert list(posteriors.failed) == [2] and "'y'" in posteriors.failed[2]
    for number in (0, 1, 3):
        np.testing.assert_array_equal(posteriors["slope"][number], good["slope"][number])
    assert np.isnan(posteriors["slope"][2]).all() and np.isnan(posteriors.stats["log_density"][2]).all()
    assert not posteriors.stats["num_steps"][2].any() and posteriors.stats["num_steps"][3].all()
    assert np.isnan(posteriors.reduced["m"]["slope"].mean[2]) and not posteriors.reduced["m"]["slope"].count[2]
    assert np.isfinite(posteriors.reduced["m"]["slope"].mean[[0, 1, 3]]).all()
    verdicts = posteriors.verdicts()
    assert str(verdicts.loc[2, "grade"]) == "not good" and "'y'" in str(verdicts.loc[2, "problem"])
    with pytest.raises(ValueError, match=r"posteriors.of\(2\): this data set was not sampled"):
        posteriors.of(2)


@pytest.mark.slow
def test_verdicts_and_summaries_are_those_of_each_posterior():
    posteriors = run_each(line, regressions(3), each={"x": 0, "y": 0}, num_warmup=200, num_samples=300, progress=False)
    for name, row in posteriors.verdicts().iterrows():
        one = posteriors.of(name)
        assert str(row["grade"]) == one.verdict().grade
        found = posteriors.summary().loc[name].to_numpy()
        np.testing.assert_allclose(found, one.summary().drop("log_density").to_numpy())


@pytest.mark.slow
def test_the_posterior_of_a_data_set_knows_its_data():
    posteriors = run_each(line, table({"a": 3, "b": 9, "c": 5, "d": 4}), each="subject", **SIZES)
    assert posteriors.of("c").log_likelihood()["y"].shape == (4, 20, 5)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [None, []])
def test_reducers_have_a_result_for_each_data_set(keep):
    reducers = {"moments": phx.reducers.moments(), "r_hat": phx.reducers.rhat()}
    options = {"reducers": reducers, "keep": keep, **SIZES}
    posteriors = run_each(line, regressions(4), each={"x": 0, "y": 0}, **options)
    assert posteriors.reduced["r_hat"]["scale"].shape == (4,)
    data = {name: values[2] for name, values in regressions(4).items()}
    alone = phx.mcmc(line, data, kernel=ALONE, seed=2, **options)
    found = posteriors.reduced["moments"]["slope"].mean[2]
    np.testing.assert_allclose(found, alone.reduced["moments"]["slope"].mean, rtol=1e-3)


def test_another_call_compiles_nothing():
    data, options = regressions(4), {"each": {"x": 0, "y": 0}, **SIZES}
    run_each(line, data, **options)
    assert run_each(line, {"x": data["x"], "y": data["y"] + 1}, seed=1, **options).timing.compilations == 0


@pytest.mark.slow
def test_an_argument_may_be_a_number_for_each_data_set():
    def successes(n, k):
        phx.sample("k", dist.Binomial(n, phx.sample("p", dist.Beta(1.0, 1.0))), obs=k)

    n, k = np.array([10, 20, 30, 1000]), np.array([3, 5, 7, 900])
    posteriors = run_each(successes, {"n": n, "k": k}, each={"n": 0, "k": 0}, num_samples=500, progress=False)
    errors = posteriors["p"].mean((1, 2)) - (k + 1) / (n + 2)
    assert (np.abs(errors) < 5 * posteriors.summary()["mcse_mean"].to_numpy()).all()  # fails once in 400,000 runs


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 99))
def test_rows_are_divided_by_the_values_of_a_column(sizes, seed):
    random = np.random.default_rng(seed)
    subject = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    x = random.normal(size=len(subject))
    sets = DataSets.of(line, {"subject": subject, "x": x, "y": -x}, "subject")
    for number, name in enumerate(sets.names):
        one = sets.one(number, with_padding=False)
        np.testing.assert_allclose(one["x"], x[subject == name], rtol=1e-6)
        np.testing.assert_array_equal(one["y"], -one["x"])


def test_codes_of_levels_and_columns_are_those_of_the_whole_table():
    data = pd.DataFrame({"subject": [1, 1, 2], "site": pd.Categorical(["west", "east", "west"])})
    sets = DataSets.of(lambda site: None, data, "subject")
    assert list(sets.one(1, with_padding=False)["site"]) == ["west"]
    assert list(sets.one(1, with_padding=False)["site"].cat.categories) == ["east", "west"]


def mean_of_rows(x, y):
    slope = phx.sample("slope", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(slope * (x - x.mean()), 1.0), obs=y)


def scaled_prior(x, y):
    slope = phx.sample("slope", dist.Normal(0.0, 3 / jnp.sqrt(jnp.sum(x**2))))
    phx.sample("y", dist.Normal(1e4 + slope * x, 2.0), obs=y)


def counted_rows(x, y):
    slope = phx.sample("slope", dist.Normal(0.0, 1.0))
    phx.factor("large", -1e6)
    phx.factor("counted", -0.1 * len(y) * slope**2)
    phx.sample("y", dist.Normal(slope * x, 1.0), obs=y)


def impossible_here(x, y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.factor("far", jnp.where(mean > 50.0, 0.0, -jnp.inf))
    phx.sample("y", dist.Normal(mean, jnp.std(y)), obs=y)


def kept_mean(x, y):
    phx.deterministic("kept", y.mean())
    phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)


def one_term(x, y):
    phx.factor("y", -jnp.sum((y - phx.sample("mean", dist.Normal(0.0, 1.0))) ** 2))


def one_event(x, y):
    phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0)), jnp.ones(len(y))).to_event(1), obs=y)


def of_each_row(x, y):
    phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0).expand([len(y)])), 1.0), obs=y)


CHANGES = "changes with the rows that fill it up"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (mean_of_rows, f"the density of 'y' {CHANGES}"),
        (scaled_prior, f"the density of 'slope' {CHANGES}"),
        (counted_rows, f"the density of 'counted' {CHANGES}"),
        (impossible_here, f"the density of 'y' {CHANGES}"),
        (kept_mean, f"the deterministic value 'kept' {CHANGES}"),
        (one_term, f"the density of 'y' {CHANGES}"),
        (one_event, f"the density of 'y' {CHANGES}"),
        (of_each_row, "variable 'mean' has an element for each row"),
    ],
)
@pytest.mark.parametrize("constant", [False, True])
def test_a_model_that_mixes_rows_is_refused_where_lengths_differ(model, message, constant):
    data = table({"a": 3, "b": 9, "c": 3}).sort_values("subject", ignore_index=True)
    if constant:  # rows whose mean is that of any number of copies, in the first data set of its length
        data.loc[:2, ["x", "y"]] = 1.0
    sets = DataSets.of(model, data, "subject")
    with pytest.raises(ValueError, match=message):
        check_ragged(model, with_real_rows(model, sets.most), sets)


def plates(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.deterministic("fit", jnp.multiply(slope, x))
    numpyro.deterministic("twice", jnp.multiply(2.0, scale))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(jnp.multiply(slope, x), scale), obs=y)
        numpyro.sample("above", dist.Bernoulli(logits=jnp.multiply(slope, x)), obs=(y > 0).astype(int))


def factors(x, y):
    phx.factor("y", -0.5 * (y - phx.sample("slope", dist.Normal(0.0, 1.0)) * x) ** 2)


def vectors(x, y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    phx.sample(
        "both", dist.MultivariateNormal(jnp.broadcast_to(mean, (len(x), 2)), jnp.eye(2)), obs=jnp.stack([x, y], -1)
    )


@pytest.mark.parametrize(
    ("model", "of_rows"),
    [
        pytest.param(plates, {"fit"}, marks=pytest.mark.slow),
        (factors, set()),
        pytest.param(vectors, set(), marks=pytest.mark.slow),
    ],
)
def test_a_model_with_terms_by_row_is_accepted(model, of_rows):
    sets = DataSets.of(model, table({"a": 3, "b": 9, "c": 1}), "subject")
    assert check_ragged(model, with_real_rows(model, sets.most), sets) == of_rows


@pytest.mark.slow
def test_the_data_of_a_run_are_those_at_its_call():
    data = {name: values.astype(np.float32) for name, values in regressions(3).items()}
    posteriors = run_each(line, data, each={"x": 0, "y": 0}, **SIZES)
    before = posteriors.of(1).log_likelihood()["y"]
    data["y"][:] = 50.0
    np.testing.assert_array_equal(posteriors.of(1).log_likelihood()["y"], before)


NAMES = [
    (["b", "a", "b"], ("a", "b")),
    ([2.5, 0.5, 2.5], (0.5, 2.5)),
    (pd.Categorical.from_codes([0, 1, 0], [1, "1"]), (1, "1")),  # pyright: ignore[reportArgumentType]
    (pd.Categorical([10, 20, 10]), (10, 20)),
    (pd.to_datetime(pd.Series(["2020-01-01", "2020-01-02", "2020-01-01"])), ("2020-01-01", "2020-01-02")),
]


@pytest.mark.parametrize(("subject", "names"), NAMES)
def test_names_of_data_sets(subject, names):
    assert DataSets.of(line, {"subject": subject, "x": np.ones(3), "y": np.ones(3)}, "subject").names == names


@pytest.mark.parametrize(
    "subject", [["a", None, "b"], [0.5, np.nan, 1.0], pd.Series(["a", pd.NA, "b"], dtype="string")]
)
def test_a_row_without_a_data_set_is_named(subject):
    with pytest.raises(ValueError, match="each='subject': 1 row without a value there .the first: row 1"):
        DataSets.of(line, {"subject": subject, "x": np.ones(3), "y": np.ones(3)}, "subject")


@pytest.mark.parametrize("nested", [{"z": np.ones(3)}, ["u", "v", "u"], [np.ones(2)] * 3])
def test_rows_within_a_tree_are_not_shared_in_silence(nested):
    with pytest.raises(ValueError, match="each: x is a (dict|list) with an entry for each row"):
        DataSets.of(line, {"subject": ["a", "b", "a"], "x": nested, "y": np.ones(3)}, "subject")


def test_arguments_that_all_data_sets_share_are_named():
    known = {"subject": ["a", "b", "a"], "x": np.ones(2), "y": np.ones(3)}
    words = r"the same for every data set, since their lengths differ from the rows': x \(2,\)$"
    assert re.search(words, DataSets.of(line, known, "subject").notice)
    assert not DataSets.of(line, {**known, "x": np.ones(3)}, "subject").notice
    assert not DataSets.of(line, {"x": np.ones(2), "y": np.ones((3, 2))}, {"y": 0}).notice


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (np.zeros((0, 3)), "an array without entries"),
        ({"a": 1}, "a dict"),
        (3.0, "a number"),
        ([np.ones(3), np.ones(4)], "a list"),
    ],
)
def test_an_argument_without_an_axis_is_named(x, kind):
    with pytest.raises(ValueError, match=f"each: x is {kind}; expected an array"):
        DataSets.of(line, {"x": x, "y": np.ones(3)}, {"x": 0})


@pytest.mark.slow
def test_initial_values_are_those_of_each_data_set():
    init = {"slope": np.arange(4, dtype=np.float32)}
    options = {**SIZES, "num_warmup": 0, "num_samples": 1, "init": init}
    posteriors = run_each(line, regressions(3), each={"x": 0, "y": 0}, kernel=phx.nuts(step_size=1e-6), **options)
    np.testing.assert_allclose(posteriors["slope"][..., 0], np.broadcast_to(init["slope"], (3, 4)), atol=1e-3)
    with pytest.raises(ValueError, match="no latent variable 'zz'"):
        run_each(line, regressions(3), each={"x": 0, "y": 0}, **{**options, "init": {"zz": 0.0}})


BAD = [
    ({"each": "subjct"}, ValueError, "no column of this name.*Did you mean 'subject'"),
    ({"each": 3}, TypeError, "each: expected the name of a column"),
    ({"each": {"z": 0}}, ValueError, "no argument 'z'"),
    ({"each": {3: 0}}, TypeError, "each: expected the name of a column"),
    ({"each": {"y": 2}}, ValueError, "no axis 2"),
    ({"each": "subject", "checkpoint": "x"}, ValueError, "does not take checkpoint="),
    ({"each": "subject", "reducers": {"q": phx.reducers.quantiles([0.5])}}, ValueError, "one state for all chains"),
    ({"each": "subject", "missing": "impute"}, ValueError, "does not take missing="),
    ({"each": "subject", "keep": []}, ValueError, "no result without reducers"),
    (
        {"each": "subject", "store": "x.zarr", "mesh": phx.make_mesh(chain=4, devices=jax.devices()[:4])},
        ValueError,
        "2 data sets cannot be divided evenly over 4 devices",
    ),
    ({"each": "subject", "init": "prior"}, ValueError, "init: with each= expected None or a dict"),
    ({"each": "subject", "kernel": phx.chees()}, ValueError, "chees.* cannot run on many data sets"),
    ({"each": "subject", "kernel": phx.nuts(metric="dense")}, ValueError, 'metric="dense" cannot be learned'),
    (
        {"each": "subject", "mesh": phx.make_mesh(chain=1, data=2, devices=jax.devices()[:2])},
        ValueError,
        "the mesh has",
    ),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_bad_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        run_each(line, table({"a": 3, "b": 9}), **options)


def test_data_sets_without_values_or_rows_are_refused():
    data = table({"a": 3, "b": 9})
    with pytest.raises(ValueError, match="data set 'z' has no rows"):
        run_each(line, data.assign(subject=pd.Categorical(data["subject"], ["a", "b", "z"])), each="subject")
    with pytest.raises(ValueError, match="y has no value in data set 'a'"):
        run_each(line, data.assign(y=data["y"].where(data["subject"] == "b")), each="subject")


def test_an_index_out_of_range_names_its_data_set():
    def groups(k, y):
        phx.sample("y", dist.Normal(phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))[k], 1.0), obs=y)

    k = np.zeros((4, 6), int)
    k[2, 3] = 3
    with pytest.raises(ValueError, match="data set 2: .* 3 is outside 0..2"):
        run_each(groups, {"k": k, "y": np.zeros((4, 6))}, each={"k": 0, "y": 0})
