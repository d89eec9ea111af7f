"""Sizes and branches that a model takes from the values of its data: these are compiled in, and said to be."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import phalanx as phx
from phalanx.density.target import Target

RNG = np.random.default_rng(0)
GROUP = np.array([0, 2, 1, 2, 0, 1], np.int32)
Y = RNG.normal(size=6).astype(np.float32)


def by_largest(group, y):
    level = phx.sample("level", dist.Normal(0.0, 1.0).expand([int(np.max(group)) + 1]))
    phx.sample("y", dist.Normal(level[group], 1.0), obs=y)


def by_unique(group, y):
    level = phx.sample("level", dist.Normal(0.0, 1.0).expand([len(np.unique(group))]))
    phx.sample("y", dist.Normal(level[group], 1.0), obs=y)


def by_flag(group, y):
    level = phx.sample("level", dist.Normal(0.0, 1.0).expand([3]))
    if group[0] == 0:
        phx.factor("first", -(level[0] ** 2))
    phx.sample("y", dist.Normal(level[group], 1.0), obs=y)


def by_mask(group, y):
    level = phx.sample("level", dist.Normal(0.0, 1.0).expand([3]))
    phx.sample("y", dist.Normal(level[group[group > 0]], 1.0), obs=y[group > 0])


def ucbadmit(group, y):
    """NumPyro's example: departments are counted."""
    departments = len(np.unique(group))
    scale = numpyro.sample("scale", dist.HalfCauchy(2.0))
    with numpyro.plate("departments", departments):
        level = numpyro.sample("level", dist.Normal(0.0, scale))
    numpyro.sample("y", dist.Normal(level[group], 1.0), obs=y)  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize("model", [by_largest, by_unique, by_flag, by_mask, ucbadmit], ids=lambda m: m.__name__)
def test_only_what_is_needed_is_compiled_in(model):
    target = Target(model, {"group": GROUP, "y": Y})
    assert [*target.arguments.constants] == ["group"] and target.arguments.names == ("y",)
    assert target.constrain(target.initial_position(jax.random.key(0)))["level"].shape == (3,)
    as_array = Target(model, {"group": jnp.asarray(GROUP), "y": Y})
    assert as_array.layout == target.layout


def test_two_are_compiled_in_where_two_are_needed():
    def model(group, item, y):
        shape = [int(group.max()) + 1, len(set(item.tolist()))]
        level = phx.sample("level", dist.Normal(0.0, 1.0).expand(shape))
        phx.sample("y", dist.Normal(level[group, item], 1.0), obs=y)

    assert Target(model, {"group": GROUP, "item": GROUP % 2, "y": Y}).arguments.constants.keys() == {"group", "item"}


def annotators(annotations, annotator):
    """The probability of each class by annotator, classes of items summed over (Dawid and Skene)."""
    classes, people = int(np.max(annotations)) + 1, int(np.max(annotator)) + 1
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(classes)))
    with numpyro.plate("people", people, dim=-2), numpyro.plate("classes", classes):
        says = numpyro.sample("says", dist.Dirichlet(jnp.ones(classes)))
    said = jnp.log(says)[annotator[None, :, None], jnp.arange(classes)[None, None], annotations[..., None]]
    by_class = jnp.log(share)[None] + said.sum(1)
    numpyro.factor("annotations", jax.nn.logsumexp(by_class, axis=1))


SIZES = {"num_warmup": 5, "num_samples": 5, "progress": False}


@pytest.mark.slow
def test_a_run_says_what_is_compiled_in_and_other_values_are_refused():
    annotations = RNG.integers(0, 3, size=(8, 4)).astype(np.int32)
    annotations[0] = 2
    data = {"annotations": annotations, "annotator": np.array([0, 1, 1, 2])}
    with jax.numpy_rank_promotion("allow"):  # NumPyro promotes ranks
        sampler = phx.compile(annotators, data, kernel=phx.rwmh(0.1))
        posterior = sampler.run(0, **SIZES)
    assert posterior.draws["says"].shape == (4, 5, 3, 3, 3)
    assert "compiled in" in posterior.record.data["annotations"]
    assert sampler.run(0, {**data}, **SIZES).draws["says"].shape == (4, 5, 3, 3, 3)
    other = {**data, "annotations": annotations[::-1].copy()}
    with pytest.raises(ValueError, match="data: annotations has other values than the sampler was compiled for"):
        sampler.run(0, other)


@pytest.mark.slow
def test_a_fit_takes_them_too():
    fit = phx.fit(by_unique, phx.guides.mean_field(), {"group": GROUP, "y": Y}, num_steps=20, progress=False)
    assert fit.sample(seed=0, n=3)["level"].shape == (3, 3)
    with pytest.raises(ValueError, match="needs the values of the argument 'group' .* change from step to step"):
        phx.fit(by_unique, phx.guides.mean_field(), {"group": GROUP, "y": Y}, batch_size=2, num_steps=20)


def test_sharded_rows_are_refused_with_the_way_out(mesh_of):
    words = r"line \d+ of .*needs the values of the argument 'group' .* sharded .*data=\{'size': int\(group.max\(\)\)"
    with pytest.raises(ValueError, match=words):
        Target(by_largest, phx.shard({"group": GROUP, "y": Y}, mesh_of(1, 2)))


def test_errors_that_values_do_not_mend_stay():
    def model(y):
        mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(float(mean), 1.0), obs=y)

    with pytest.raises(ValueError, match="the variable 'mean' has no value yet"):
        Target(model, {"y": Y})


def test_a_discrete_variable_in_a_scan_is_not_to_become_a_normal():
    from numpyro.contrib.control_flow import scan

    def model(y):
        def step(state, value):
            state = numpyro.sample("state", dist.Bernoulli(0.5))
            return state, numpyro.sample("y", dist.Normal(state, 1.0), obs=value)

        numpyro.sample("mean", dist.Normal(0.0, 1.0))
        scan(step, 0, y)

    with pytest.raises(ValueError, match="'state' is latent and discrete .* forward algorithm") as found:
        Target(model, {"y": Y})
    assert "Normal" not in str(found.value)


SITES = ("west", "east", "north")
TABLE = pd.DataFrame({"group": pd.Categorical.from_codes(GROUP, SITES), "y": Y})


def predicted_from(group, y=None):
    level = phx.sample("level", dist.Normal(0.0, 1.0).expand([len(np.unique(group))]))
    phx.sample("y", dist.Normal(level[group], 0.01), obs=y)


@pytest.fixture(scope="module")
def counted():
    return phx.compile(predicted_from, TABLE, kernel=phx.rwmh(0.1)).run(0, **SIZES)


def test_levels_of_what_is_compiled_in_have_names(counted):
    assert counted.record.names == {"group": ("levels", SITES)}
    assert counted.record.labels["level"] == (SITES,)
    assert [name for name in counted.summary().index if name.startswith("level")] == [f"level[{s}]" for s in SITES]


def test_levels_of_what_is_compiled_in_are_matched_by_name(counted, tmp_path):
    other = TABLE.assign(group=TABLE.group.cat.reorder_categories(SITES[::-1]))[::-1]
    counted.save(tmp_path / "run.npz")
    for posterior, model in ((counted, None), (phx.Posterior.load(tmp_path / "run.npz"), predicted_from)):
        drawn = posterior.predictive({"group": other["group"]}, model=model)["y"]
        level = posterior.draws["level"][..., GROUP[::-1]]
        assert np.abs(drawn - level).max() < 0.06
    with pytest.raises(ValueError, match=r"variable 'level' was inferred with shape \(3,\).*the groups in 'group'"):
        counted.predictive({"group": TABLE["group"].head(1)})
    with pytest.raises(ValueError, match="group has no names of levels"):
        counted.predictive({"group": GROUP})


def test_two_arguments_with_the_same_codes_lend_no_names():
    def model(group, other, y=None):
        level = phx.sample("level", dist.Normal(0.0, 1.0).expand([len(np.unique(group))]))
        second = phx.sample("second", dist.Normal(0.0, 1.0).expand([len(np.unique(other))]))
        phx.sample("y", dist.Normal(level[group] + second[other], 1.0), obs=y)

    table = TABLE.assign(other=pd.Categorical.from_codes(GROUP, ["x", "y", "z"]))
    labels = phx.compile(model, table, kernel=phx.rwmh(0.1)).run(0, **SIZES).record.labels
    assert "level" not in labels and "second" not in labels


def test_the_prior_takes_sizes_from_data():
    drawn = phx.predictive(predicted_from, {"group": TABLE["group"]}, num_draws=7)
    assert drawn["level"].shape == (7, 3) and drawn["y"].shape == (7, 6)


def test_rows_that_are_compiled_in_belong_to_the_run(counted):
    def model(group, x, y=None):
        level = phx.sample("level", dist.Normal(0.0, 1.0).expand([int(np.max(group)) + 1]))
        phx.sample("y", dist.Normal(level[group] + x, 1.0), obs=y)

    posterior = phx.compile(model, {"group": GROUP, "x": Y, "y": Y}, kernel=phx.rwmh(0.1)).run(0, **SIZES)
    with pytest.raises(TypeError, match="missing a required argument: 'group'"):
        posterior.predictive({"x": Y})


def test_a_run_goes_on_with_the_values_it_was_compiled_for(counted):
    swapped = TABLE.assign(group=TABLE.group[[1, 0, 2, 3, 4, 5]].values)
    sampler = phx.compile(predicted_from, swapped.assign(y=Y * 1e-9), kernel=phx.rwmh(0.1))
    flat = phx.compile(predicted_from, TABLE.assign(y=Y * 1e-9), kernel=phx.rwmh(0.1)).run(0, **SIZES)
    with pytest.raises(ValueError, match="continue_run: data: group differs"):
        sampler.continue_run(flat, 10)


def by_both(group, item, y):
    levels = phx.sample("levels", dist.Normal(0.0, 1.0).expand([int(np.max(group)) + 1]))
    items = phx.sample("items", dist.Normal(0.0, 1.0).expand([int(np.max(item)) + 1]))
    phx.sample("y", dist.Normal(levels[group] + items[item], 1.0), obs=y)


def test_the_refusal_has_the_expression_of_the_argument_that_it_names(mesh_of):
    sharded = phx.shard({"item": GROUP[:4], "y": Y[:4]}, mesh_of(1, 2))
    with pytest.raises(ValueError, match=r"'int\(np.max\(item\)\)' needs the values of the argument 'item' while"):
        Target(by_both, {"group": GROUP[:4], **sharded})


def indexed(group, y):
    level = phx.sample("level", dist.Normal(0.0, 1.0).expand([3]))
    phx.sample("y", dist.Normal(level[group] + 0.5 * group, 1.0), obs=y)


def taken(group, y):
    level = phx.sample("level", dist.Normal(0.0, 1.0).expand([3]))
    phx.sample("y", dist.Normal(jnp.take(level, group), 1.0), obs=y)


def observed_levels(group, y):
    level = phx.sample("level", dist.Normal(0.0, 1.0).expand([3]))
    phx.sample("group", dist.CategoricalLogits(level[None] + 0.0 * y[:, None]), obs=group)


USERS = [indexed, taken, observed_levels]


@pytest.mark.parametrize("model", [*USERS, by_largest])
def test_whole_floats_are_indices_and_levels(model):
    whole, real = Target(model, {"group": GROUP, "y": Y}), Target(model, {"group": GROUP.astype(float), "y": Y})
    assert real.arguments.layout == whole.arguments.layout
    assert [a.dtype for a in real.arguments.arrays] == [a.dtype for a in whole.arguments.arrays]
    at = {"level": jnp.arange(3.0)}
    assert real.log_density(at) == whole.log_density(at)


def test_whole_floats_that_are_no_indices_remain_real():
    target = Target(lambda x, y: indexed(jnp.zeros(6, int), y * x), {"x": np.arange(6.0), "y": Y})
    assert [a.dtype for a in target.arguments.arrays] == [np.float32, np.float32]


@pytest.mark.parametrize("model", USERS)
@pytest.mark.parametrize(("wrong", "word"), [(1.5, "1.5"), (np.nan, "nan")])
def test_other_floats_are_refused_by_name(model, wrong, word):
    group = GROUP.astype(float)
    group[4] = wrong
    with pytest.raises(ValueError) as error:
        Target(model, {"group": group, "y": Y})
    assert str(error.value) == (
        f"data: group[4] is {word}, and the model uses group as an index or a level, which is a whole number from 0 "
        f"on. Give whole numbers, or leave out the rows that have none."
    )
