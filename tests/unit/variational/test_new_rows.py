"""Rows that a fit has not seen are numbered by the names of its own, wherever they come in."""

from __future__ import annotations

import re

import numpy as np
import numpyro.distributions as dist
import optax
import pandas as pd
import polars as pl
import pytest

import phalanx as phx

LEVELS, TRUE = ["east", "north", "south"], np.array([0.0, 10.0, -10.0], np.float32)
SITE = np.random.default_rng(0).integers(0, 3, 60)
Y = TRUE[SITE] + np.random.default_rng(1).normal(size=60).astype(np.float32)
DATA = {"site": pd.Series(pd.Categorical.from_codes(SITE, LEVELS)), "y": Y}


def likelihood(site, y=None):
    level = phx.param("level", np.zeros(3, np.float32))
    phx.sample("y", dist.Normal(level[site], 1.0), obs=y)


def model(site, y=None):
    level = phx.sample("level", dist.Normal(0.0, 20.0).expand([3]))
    phx.deterministic("first", level[0])
    phx.sample("y", dist.Normal(level[site], 1.0), obs=y)


NEW = {"site": pd.Categorical(["south", "east"]), "y": np.array([-10.0, 0.0], np.float32)}
SHUFFLED = {"site": pl.Series([LEVELS[code] for code in SITE], dtype=pl.Enum(LEVELS[::-1])), "y": Y}


@pytest.mark.slow
@pytest.mark.parametrize("batches", [False, True])
def test_rows_held_out_and_rows_that_are_new(batches):
    watched = phx.training(every=40, held_out=SHUFFLED)
    options = {"num_steps": 80, "optimizer": optax.adam(0.5), "training": watched, "progress": False}
    if batches:
        data = {"site": pl.Series(DATA["site"].tolist(), dtype=pl.Categorical), "y": Y}
        fit = phx.fit(likelihood, None, phx.batches(data, 20), **options)
    else:
        fit = phx.fit(likelihood, None, DATA, batch_size=20, **options)
    assert fit.looks[-1].held_out_loss < 3  # 1.4 at the truth; 50 and more in another numbering
    assert (fit.row_bounds(NEW).elbo > -5).all()
    with pytest.raises(ValueError, match=re.escape("data: site[0] has the level 'west', which the run's data did not")):
        fit.row_bounds({"site": ["west"], "y": Y[:1]})
    with pytest.raises(ValueError, match="data: site has no names of levels, but the run's data had"):
        fit.row_bounds({"site": np.array([0]), "y": Y[:1]})


def test_batches_that_number_their_levels_otherwise():
    def stream():
        for first in range(0, 60, 12):
            words = [LEVELS[code] for code in SITE[first : first + 12]]
            yield {
                "site": pd.Categorical(words, categories=LEVELS[::-1] if first else LEVELS),
                "y": Y[first : first + 12],
            }

    fit = phx.fit(
        likelihood, None, list(stream()), num_rows=60, num_steps=80, optimizer=optax.adam(0.5), progress=False
    )
    np.testing.assert_allclose(fit.params["level"], TRUE, atol=1.5)


@pytest.mark.slow
def test_a_fit_that_goes_on_after_a_file_numbers_data_as_it_did(tmp_path):
    guide = phx.guides.mean_field()
    fit = phx.fit(model, guide, DATA, optimizer="lbfgs", progress=False)
    drawn = fit.posterior(50)
    assert list(drawn.draws) == ["level", "first"] and drawn.record.labels["level"] == (tuple(LEVELS),)
    assert drawn.predictive({"site": ["south", "east"]})["y"].mean((0, 1)).round(-1).tolist() == [-10, 0]
    loaded = phx.Fit.load(fit.save(tmp_path / "fit.npz"))
    again = phx.fit(model, guide, SHUFFLED, init=loaded, num_steps=0, progress=False)
    np.testing.assert_allclose(again.posterior(50).draws["level"].mean((0, 1)), TRUE, atol=1.5)
    with pytest.raises(ValueError, match="data: site has no names of levels, but the run's data had 'east', 'north'"):
        phx.fit(model, guide, {"site": SITE, "y": Y}, init=loaded, num_steps=0, progress=False)
