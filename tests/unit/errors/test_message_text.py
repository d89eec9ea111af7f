"""A string among the data, where a number is meant."""

from __future__ import annotations

import re

import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx


def product(x, y):
    slope = phx.sample("slope", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(slope * x, 1.0), obs=y)


def size(n, y):
    levels = phx.sample("levels", dist.Normal(0.0, 1.0).expand([n]))
    phx.sample("y", dist.Normal(levels[0], 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        (product, {"x": "abc"}, "Here slope has shape (), and x is the string 'abc'."),
        (size, {"n": "8"}, "n is the string '8', and not a number."),
    ],
)
def test_a_string_is_named(model, data, words):
    options = {"num_warmup": 2, "num_samples": 2, "progress": False}
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.mcmc(model, {**data, "y": np.ones(2)}, kernel=phx.rwmh(0.5), **options)
