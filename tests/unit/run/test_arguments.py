"""The table of checks that inference functions share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.run.arguments import RULES, check_arguments

DATA = {"y": np.ones(3, np.float32)}


def model(y):
    phx.sample("y", dist.Normal(phx.sample("x", dist.Normal(0.0, 1.0)), 1.0), obs=y)


@pytest.mark.parametrize(
    ("call", "given", "message"),
    [
        (phx.mcmc, {"reducers": phx.reducers.moments()}, "reducers must be a dict"),
        (phx.mcmc, {"reducers": []}, "reducers must be a dict"),
        (phx.mcmc, {"num_samples": None}, "num_samples must be a whole number, at least 1; got None"),
        (phx.mcmc, {"progress": 7}, "progress must be True or False; got 7"),
        (phx.smc, {"num_particles": "many"}, "num_particles must be a whole number, at least 16; got 'many'"),
        (phx.smc, {"num_particles": None}, "num_particles must be a whole number, at least 16; got None"),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(call: Any, given: dict[str, Any], message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        call(model, DATA, **given)


def test_an_argument_without_a_rule_is_not_skipped():
    assert "sead" not in RULES
    with pytest.raises(ValueError, match="sead"):
        check_arguments(sead=-1)
