"""Fixed draws on the shape of Covertype: how many gradients they take, and how good what they lead to is."""

from __future__ import annotations

import numpyro.distributions as dist
import pytest

import phalanx as phx

ROWS, STEPS, PARTICLES = 20_000, 10_000, 8


def logistic(x, y):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]))
    phx.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.mark.slow
def test_a_tenth_of_the_gradients_of_adam_makes_no_worse_a_guide():
    """Bounds of 4,000 draws are compared, with four standard errors to spare: wrong once in 15,000 times."""
    made = phx.datasets.generate_covertype(ROWS, test_fraction=0.0)
    data = {"x": made.train_x, "y": made.train_y}
    held = phx.fit(logistic, phx.guides.mean_field(), data, optimizer="lbfgs", progress=False)
    assert held.settled and held.timing.gradient_evaluations <= STEPS * PARTICLES / 10
    steps = phx.fit(logistic, phx.guides.mean_field(), data, num_steps=STEPS, num_particles=PARTICLES, progress=False)
    a, b = held.evidence(), steps.evidence()
    assert a.elbo > b.elbo - 4.0 * (a.elbo_error**2 + b.elbo_error**2) ** 0.5
