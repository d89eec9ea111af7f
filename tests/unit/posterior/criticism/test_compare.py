"""Comparison of models: ArviZ's numbers, and refusals of models of other data."""

from __future__ import annotations

import pickle
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.unit.report.posteriors import RECORD

import phalanx as phx
from phalanx.posterior.criticism.compare import stacking_weights
from phalanx.posterior.criticism.loo import Loo
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import Timing
from phalanx.reducers.loo import PointwiseLoo

RNG = np.random.default_rng(0)
Y = RNG.normal(size=20).astype(np.float32)


def model(y, width):
    mean = phx.sample("mean", dist.Normal(0.0, 10.0))
    phx.sample("y", dist.Normal(mean, width), obs=y)


def posterior_of(width: float = 1.0, y: np.ndarray = Y, model=model) -> Posterior:
    draws = RNG.normal(y.mean(), 20**-0.5, size=(4, 100)).astype(np.float32)
    record = replace(RECORD, num_samples=100, latents={"mean": ""})
    return Posterior({"mean": draws}, {}, Timing(), record, target=phx.Target(model, {"y": y, "width": width}))


def loo_of(terms: np.ndarray, k: float = 0.1, name: str = "y") -> Loo:
    return Loo.of({name: PointwiseLoo(1000, terms, terms + 0.1, np.full(terms.shape, k))})


@pytest.mark.filterwarnings("ignore")  # ArviZ's own
def test_arviz_agrees():
    arviz = pytest.importorskip("arviz")
    if not arviz.__version__.startswith("0."):
        pytest.skip("ArviZ 1.x makes its container otherwise")
    posteriors = {"right": posterior_of(1.0), "wide": posterior_of(2.0)}
    data = {
        name: arviz.from_dict(posterior=one.draws, log_likelihood=one.log_likelihood())
        for name, one in posteriors.items()
    }
    found, expected = phx.compare(posteriors), arviz.compare(data)
    assert found.index.tolist() == expected.index.tolist() == ["right", "wide"]
    for ours, theirs in {"elpd": "elpd_loo", "se": "se", "dse": "dse", "p_loo": "p_loo", "weight": "weight"}.items():
        np.testing.assert_allclose(found[ours], expected[theirs], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found["elpd_diff"], -expected["elpd_diff"], rtol=1e-3, atol=1e-3)
    assert (found["bad_k"] > 0).tolist() == (found["warning"] != "").tolist() == expected["warning"].tolist()


def test_stacking_is_the_best_mixture():
    terms = np.log(RNG.uniform(0.1, 1.0, size=(200, 2)))
    weights = stacking_weights(terms)
    grid = np.linspace(0, 1, 1001)
    best = grid[np.argmax([np.log(np.exp(terms) @ [w, 1 - w]).sum() for w in grid])]
    assert weights.sum() == pytest.approx(1.0) and weights[0] == pytest.approx(best, abs=2e-3)
    far = stacking_weights(terms - np.linspace(0, 2000, 200)[:, None])  # densities that are 0 in any float
    np.testing.assert_allclose(far, weights, atol=1e-4)
    np.testing.assert_allclose(stacking_weights(terms - [0.0, 50.0]), [1.0, 0.0], atol=1e-6)


def test_an_observation_that_is_impossible_counts_against_its_model():
    """The mixture of 20 (-1, -3) and one (-inf, -3) is best where 20 log p + log(1 - w) is largest."""
    terms = np.array([[-1.0, -3.0]] * 20 + [[-np.inf, -3.0]])
    np.testing.assert_allclose(stacking_weights(terms), [0.944929, 0.055071], atol=1e-4)
    nowhere = np.vstack([terms, [[-np.inf, -np.inf]]])
    np.testing.assert_allclose(stacking_weights(nowhere), stacking_weights(terms), atol=1e-6)


def test_large_k_is_a_warning():
    terms = RNG.normal(size=9)
    table = phx.compare({"a": loo_of(terms), "b": loo_of(terms - 0.1, k=0.9)})
    assert table["warning"].tolist() == ["", "9 observations with a Pareto k above 0.67"]
    np.testing.assert_allclose(table[["elpd_diff", "dse"]], [[0.0, 0.0], [-0.9, 0.0]], atol=1e-9)


def test_an_observation_of_a_model_with_masks():
    found = {"y": PointwiseLoo(1000, np.zeros(3), np.zeros(3), np.zeros(3))}
    a, b = (Loo.of(found, {"y": np.array(mask)}) for mask in ([True, True, False], [True, False, True]))
    with pytest.raises(ValueError, match="'a' and 'b' leave out different observations by a mask"):
        phx.compare({"a": a, "b": b})
    assert phx.compare({"a": a, "c": a})["elpd_diff"].tolist() == [0.0, 0.0]


def test_models_that_cannot_be_compared_are_named():
    terms = np.zeros(5)
    with pytest.raises(ValueError, match="'a' has 5 observations and 'b' has 4"):
        phx.compare({"a": loo_of(terms), "b": loo_of(terms[:4])})
    two = Loo.of({n: PointwiseLoo(9, z, z, z) for n, z in {"y": np.zeros(2), "z": np.zeros(3)}.items()})
    with pytest.raises(ValueError, match="'a' observes 'y' and 'b' observes 'y', 'z'"):
        phx.compare({"a": loo_of(terms), "b": two})
    with pytest.raises(TypeError, match="expected a dict of posteriors by name"):
        phx.compare([loo_of(terms)])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="'a' must be a posterior or its loo"):
        phx.compare({"a": 3, "b": loo_of(terms)})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="give two models at least; got 'a'"):
        phx.compare({"a": loo_of(terms)})


def scaled(y, width):
    mean = phx.sample("mean", dist.Normal(0.0, 10.0))
    phx.sample("y", dist.Normal(mean, width), obs=2.0 * y)


def residuals(y, width):
    mean = phx.sample("mean", dist.Normal(0.0, 10.0))
    phx.sample("y", dist.Normal(0.0, width), obs=y - mean)


def vectors(y, width):
    mean = phx.sample("mean", dist.Normal(0.0, 10.0))
    phx.sample("y", dist.Normal(mean, width).expand([10, 2]).to_event(1), obs=y.reshape(10, 2))


SWAPPED = Y.reshape(10, 2)[:, ::-1].ravel()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"y": 5 * Y[::-1]}, "different values of 'y'"),
        ({"y": Y[::-1]}, "values of 'y' in another order"),
        ({"y": Y + np.float32(1e-4)}, "different values of 'y'"),
        ({"model": scaled}, "different values of 'y'"),
    ],
)
def test_results_of_other_data_are_refused(other, words):
    """As posteriors are: a result carries a fingerprint of its observations."""
    one, two = posterior_of(), posterior_of(**other)
    for first, second in ((one.loo(), two.loo()), (one, two.loo()), (pickle.loads(pickle.dumps(one.loo())), two)):
        with pytest.raises(ValueError, match=f"'a' and 'b' observe {words}: they predict different data. Run all"):
            phx.compare({"a": first, "b": second})


def test_results_of_the_same_data_are_compared():
    one = posterior_of().loo()
    again = posterior_of(width=2.0, y=np.asarray(Y, np.float64)).loo()
    assert phx.compare({"a": one, "b": again, "c": posterior_of(model=residuals)}).index[0] in ("a", "c")
    loaded = replace(posterior_of(2.0), target=None)
    phx.compare({"a": one, "b": loaded.loo({"y": Y, "width": 2.0}, model=model)})
    with pytest.raises(ValueError, match="'a' and 'b' observe different values of 'y'"):
        phx.compare({"a": one, "b": loaded.loo({"y": 2 * Y, "width": 2.0}, model=model)})


def test_vectors_of_other_entries_are_refused():
    one, two = (posterior_of(y=y, model=vectors).loo() for y in (Y, SWAPPED))
    assert one.fingerprint["y"].shape == (10,)
    with pytest.raises(ValueError, match="'a' and 'b' observe different values of 'y'"):
        phx.compare({"a": one, "b": two})


def test_models_of_several_outcomes_are_compared_by_those_named():
    def two(y, width):
        mean = phx.sample("mean", dist.Normal(0.0, 10.0))
        phx.sample("y", dist.Normal(mean, width), obs=y)
        phx.sample("again", dist.Normal(mean, 1.0), obs=y)

    models = {"two": posterior_of(2.0, model=two), "one": posterior_of(1.0)}
    with pytest.raises(ValueError, match="'two' has 40 observations and 'one' has 20"):
        phx.compare(models)
    table = phx.compare(models, names="y")
    assert table.index.tolist() == ["one", "two"]
    assert table.loc["two", "elpd"] == pytest.approx(models["two"].loo(names=["y"]).elpd, rel=1e-5)
    with pytest.raises(ValueError, match="phx.compare: 'one': loo: names has 'again'"):
        phx.compare(models, names=["again"])
    with pytest.raises(ValueError, match=r"'two' is a loo\(\) of 'again', 'y', and names has 'y'\. Give the posterior"):
        phx.compare({name: one.loo() for name, one in models.items()}, names="y")


def test_all_columns_are_printed():
    table = phx.compare({"a": loo_of(np.full(4, -123.456)), "b": loo_of(np.full(4, -2000.0))})
    lines = str(table).splitlines()
    assert lines[0].split() == list(table.columns) and lines[1].split()[:5] == ["a", "-493.8", "0.0", "0.0", "0.0"]


def test_a_factor_that_is_left_out_is_a_warning():
    def truncated(y, width):
        model(y, width)
        phx.factor("truncation", jnp.sum(y) * 0.0 - y.shape[0])

    table = phx.compare({"a": posterior_of().loo(), "b": posterior_of(model=truncated).loo()})
    assert table.loc["b", "warning"] == "factor left out"


def test_a_model_of_a_factor_alone_is_named():
    def soft(y, width):
        mean = phx.sample("mean", dist.Normal(0.0, 10.0))
        phx.factor("likelihood", -jnp.sum((y - mean) ** 2) / width)

    with pytest.raises(ValueError, match="phx.compare: 'soft': loo: 'likelihood' is a term"):
        phx.compare({"soft": posterior_of(model=soft), "right": posterior_of()})
