"""Flow guides: what they refuse, what they have of few coordinates, and posteriors that no normal is."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx


def banana():
    """Of mean E[x^2] = 1 and variance 0.1^2 + Var[x^2] = 2.01, along a parabola."""
    x = phx.sample("x", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(x**2, 0.1))


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["coupling", "inverse_autoregressive"])
def test_a_banana_is_learned(transform):
    fit = phx.fit(banana, phx.guides.flow(transform=transform), num_particles=128, num_steps=8000, progress=False)
    assert fit.evidence().elbo > -0.1 and fit.evidence().log_evidence == pytest.approx(0.0, abs=0.05)
    assert phx.fit(banana, phx.guides.full_rank(), progress=False).evidence().elbo < -0.5
    draws = fit.sample(seed=0, n=20_000)
    assert draws["y"].mean() == pytest.approx(1.0, abs=0.15)
    assert np.std(draws["y"] - draws["x"] ** 2) == pytest.approx(0.1, rel=0.3)


@pytest.mark.slow
def test_flow_of_one_coordinate_is_a_normal():
    fit = phx.fit(lambda: phx.sample("x", dist.Normal(3.0, 2.0)), phx.guides.flow(), num_steps=2000, progress=False)
    assert sorted(fit.params) == ["loc", "scale"]
    assert fit.params["loc"][0] == pytest.approx(3.0, abs=0.05) and fit.params["scale"][0] == pytest.approx(
        2.0, rel=0.02
    )


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="transform must be 'coupling' or 'inverse_autoregressive'; got 'spline'"):
        phx.guides.flow(transform="spline")
    for hidden in ((), (0,), (1.5,), (True,)):
        with pytest.raises(ValueError, match="hidden must be whole numbers above 0, a layer each"):
            phx.guides.flow(hidden=hidden)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="the first argument is the model, a function; got 3. Sizes are given by name"):
        phx.guides.structured(3)  # pyright: ignore[reportArgumentType]
