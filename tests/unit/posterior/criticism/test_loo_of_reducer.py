"""The reducer of leave-one-out cross-validation: the results of stored draws, whatever the model leaves out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx

ROWS = 12
RNG = np.random.default_rng(1)
X = RNG.normal(size=ROWS).astype(np.float32)
Y = (X + RNG.normal(size=ROWS)).astype(np.float32)
GAPS = np.where(np.arange(ROWS) % 3 == 1, np.nan, Y).astype(np.float32)
PAIRS = np.where(np.arange(ROWS) < 4, np.nan, Y).astype(np.float32)
LEFT_OUT = {
    "y": np.isnan(GAPS),
    "pairs": np.arange(ROWS // 2) < 2,
    "masked": X <= 0,
    "masked_pairs": (X.reshape(-1, 2) <= 0).all(1),
    "plain": np.zeros(ROWS, bool),
}


def model(x, y, pairs, whole):
    w = phx.sample("w", dist.Normal(0.0, 1.0))
    of_pairs = dist.Normal((x * w).reshape(-1, 2), 1.0)
    phx.sample("y", dist.Normal(x * w, 1.0), obs=y)
    phx.sample("pairs", of_pairs.to_event(1), obs=pairs.reshape(-1, 2))
    phx.sample("masked", dist.Normal(x * w, 1.0).mask(x > 0), obs=whole)
    phx.sample("masked_pairs", of_pairs.mask((x > 0).reshape(-1, 2)).to_event(1), obs=whole.reshape(-1, 2))
    phx.sample("plain", dist.Normal(x * w, 1.0), obs=whole)
    phx.factor("soft", 0.0)


@pytest.fixture(scope="module")
def run() -> phx.Posterior:
    data = {"x": X, "y": GAPS, "pairs": PAIRS, "whole": Y}
    return phx.mcmc(
        model, data, reducers={"loo": phx.reducers.loo()}, missing="impute", num_warmup=150, num_samples=250,
        kernel=phx.hmc(num_steps=5), progress=False,
    )  # fmt: skip


def test_agrees_with_stored_draws(run, monkeypatch, tmp_path):
    monkeypatch.setattr("phalanx.posterior.criticism.loo._efficiency", lambda draws: 1.0)  # a reducer has no ESS
    stored, reduced = replace(run, reduced={}), replace(run, draws={})
    expected, found = stored.loo(), reduced.loo()
    count = sum((~left_out).sum() for left_out in LEFT_OUT.values())
    assert found.num_observations == expected.num_observations == count
    for name in ("elpd", "se", "p_loo"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-3, abs=1e-3)
    for name, left_out in LEFT_OUT.items():
        for of in ("pointwise", "pareto_k"):
            np.testing.assert_allclose(getattr(found, of)[name], getattr(expected, of)[name], atol=0.01)
            np.testing.assert_array_equal(np.isnan(getattr(found, of)[name]), left_out)
    assert found.factors == expected.factors == ("soft",)
    differences = phx.compare({"stored": stored, "reduced": reduced})["elpd_diff"].to_numpy()
    np.testing.assert_allclose(differences, 0.0, atol=1e-2)
    loaded = phx.open(run.save(tmp_path / "run.npz"))
    assert replace(loaded, draws={}).loo().num_observations == count


def test_arviz_agrees_on_the_entries_that_are_there(run):
    arviz = pytest.importorskip("arviz")
    if not arviz.__version__.startswith("0."):
        pytest.skip("ArviZ 1.x makes its container otherwise")
    terms = run.log_likelihood()["y"][:, :, ~LEFT_OUT["y"]]
    data = arviz.from_dict(posterior={"w": run["w"]}, log_likelihood={"y": terms})
    expected = arviz.loo(data, reff=1.0, pointwise=True)
    found = replace(run, draws={}).loo()
    np.testing.assert_allclose(found.pointwise["y"][~LEFT_OUT["y"]], expected.loo_i, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.pareto_k["y"][~LEFT_OUT["y"]], expected.pareto_k, atol=1e-2)


def test_other_data_are_noticed_without_draws(run):
    """The observed values do not depend on draws, so that a comparison sees them in a run that stores none."""
    data = {"x": X, "y": GAPS, "pairs": PAIRS, "whole": Y + 1.0}
    other = replace(run, draws={}, target=phx.Target(run.target.program, {**data, **imputed_of(run)}))
    with pytest.raises(ValueError, match="observe different values of 'masked': they predict different data"):
        phx.compare({"a": replace(run, draws={}), "b": other})


def imputed_of(run):
    from phalanx.density.given_entries import WHERE_MISSING
    from phalanx.density.imputation import masks_of_missing

    masks = masks_of_missing(run.target.arguments)
    numbers = {n: np.where(m, np.cumsum(m).reshape(m.shape) - 1, -1).astype(np.int32) for n, m in masks.items()}
    mended = {"y": np.nan_to_num(GAPS), "pairs": np.nan_to_num(PAIRS)}
    return {WHERE_MISSING: numbers, **mended}
