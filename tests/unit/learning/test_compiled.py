"""Another seed, other data, another rate compile nothing; and blocks are cut where nobody sees it."""

from __future__ import annotations

import numpy as np
import optax
import pytest
from tests.unit.variational.models import DATA, X, Y, by_hand, exact, regression

import phalanx as phx
from phalanx.run.compile.block_length import BlockLength

SHORT = {"num_steps": 30, "until": False, "progress": False}


@pytest.mark.parametrize(
    "guide", [pytest.param(phx.guides.mean_field(), marks=pytest.mark.slow), by_hand], ids=["family", "program"]
)
def test_a_second_fit_compiles_nothing(guide):
    phx.fit(regression, guide, DATA, **SHORT)
    other = {"x": X[::-1].copy(), "y": Y + 1.0}
    for options in ({"seed": 1}, {"optimizer": 0.01}, {"num_steps": 40}):
        again = phx.fit(regression, guide, other, **{**SHORT, **options})
        assert again.timing.compilations == 0


@pytest.mark.slow
def test_a_second_fit_of_a_family_runs_the_model_once():
    runs = 0

    def model(x, y):
        nonlocal runs
        runs += 1
        regression(x, y)

    first = phx.fit(model, phx.guides.mean_field(), DATA, **SHORT)
    runs = 0
    again = phx.fit(model, phx.guides.mean_field(), DATA, **SHORT)
    assert runs == 1
    np.testing.assert_array_equal(again.losses.elbo, first.losses.elbo)


@pytest.mark.slow
def test_draws_of_a_second_fit_of_a_family_do_not_run_the_model():
    runs = 0

    def model(x, y):
        nonlocal runs
        runs += 1
        regression(x, y)

    first = phx.fit(model, phx.guides.mean_field(), DATA, **SHORT).sample(seed=0, n=5)
    again = phx.fit(model, phx.guides.mean_field(), DATA, **SHORT)
    runs = 0
    drawn = again.sample(seed=0, n=5)
    assert runs == 0
    np.testing.assert_array_equal(drawn["total"], first["total"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"guide": phx.guides.mean_field(init_scale=0.5)}, {"optimizer": optax.sgd(0.01)}, {"num_particles": 3}]
)
def test_functions_that_differ_are_compiled_anew(options):
    one = phx.fit(regression, phx.guides.mean_field(), DATA, **SHORT)
    guide = options.get("guide", phx.guides.mean_field())
    other = phx.fit(regression, guide, DATA, **{k: v for k, v in options.items() if k != "guide"}, **SHORT)
    assert not np.array_equal(one.losses.elbo, other.losses.elbo)


@pytest.mark.slow
def test_other_shapes_and_other_guides_compile_anew():
    guide = phx.guides.mean_field()
    phx.fit(regression, guide, DATA, **SHORT)
    # numbers of rows and particles that no other test has: what another process compiled is read
    assert phx.fit(regression, guide, {"x": X[:23], "y": Y[:23]}, **SHORT).timing.compilations > 0
    assert phx.fit(regression, guide, DATA, num_particles=13, **SHORT).timing.compilations > 0


@pytest.mark.slow
@pytest.mark.parametrize("guide", [phx.guides.mean_field(), by_hand], ids=["family", "program"])
def test_values_that_a_model_reads_from_outside_are_read_anew(guide):
    shift = 0.0

    def model(x, y):
        regression(x, y + shift)

    first = phx.fit(model, guide, DATA, **SHORT)
    shift = 5.0
    second = phx.fit(model, guide, DATA, **SHORT)
    assert second.timing.compilations > 0 and not np.allclose(first.losses.elbo, second.losses.elbo)


def test_blocks_are_cut_where_nobody_sees_it(monkeypatch):
    whole = phx.fit(regression, by_hand, DATA, **SHORT)
    monkeypatch.setattr(BlockLength, "ticks", property(lambda self: 7))
    seen = []
    cut = phx.fit(regression, by_hand, DATA, on_block=seen.append, **SHORT)
    np.testing.assert_array_equal(cut.losses.elbo, whole.losses.elbo)
    np.testing.assert_array_equal(cut.params["loc"], whole.params["loc"])
    assert [report.done for report in seen] == [7, 14, 21, 22, 29, 30] and seen[-1].total == 30
    assert "ELBO" in str(seen[0]) and seen[0].what == "steps"


def test_any_optimiser_of_optax():
    fit = phx.fit(regression, by_hand, DATA, optimizer=optax.rmsprop(0.02), num_steps=2000, until=False, progress=False)
    mean, covariance, _ = exact()
    np.testing.assert_allclose(fit.params["loc"], mean, atol=0.5 * np.sqrt(covariance.max()))


def test_an_optimiser_that_looks_at_the_values_it_begins_with():
    def begin(params):
        return {"length": float(sum(np.abs(np.asarray(leaf)).sum() for leaf in params.values()))}

    def update(updates, state, params=None):
        return {name: -0.01 * leaf / (1.0 + state["length"]) for name, leaf in updates.items()}, state

    fit = phx.fit(regression, by_hand, DATA, optimizer=optax.GradientTransformation(begin, update), **SHORT)
    assert fit.steps == 30 and np.isfinite(fit.losses.elbo).all()


def test_ctrl_c_returns_what_was_learned(ctrl_c):
    def stop(report):
        if report.done >= 20:
            ctrl_c()

    fit = phx.fit(regression, by_hand, DATA, on_block=stop, progress=False)
    assert fit.record.interrupted and 20 <= fit.steps < 20_000 and not fit.settled
    assert "Ctrl-C ended the fit" in fit.unsettled and np.isfinite(fit.params["loc"]).all()


def test_time_is_kept():
    fit = phx.fit(regression, by_hand, DATA, until=phx.until(seconds=1e-6), progress=False)
    assert fit.steps == 0 and "Time was over" in fit.unsettled


def test_progress_shows_steps(capsys):
    phx.fit(regression, by_hand, DATA, num_steps=30, until=False)
    shown = capsys.readouterr().err
    assert "fitting" in shown and "steps 30/30" in shown and "ELBO" in shown
