"""NUTS with default settings, in single precision, against the reference posteriors.

A mean is off by more than 4 standard errors with probability 6e-5; with some 80 parameters a right sampler fails
once in two hundred seeds. The seed is fixed, so the tests are the same on every run.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.statistical.posteriordb.entries import ENTRIES
from tests.statistical.posteriordb.reference import compare

import phalanx as phx

QUICK = "eight_schools_noncentered"
"""A hierarchy; the others are slow for compiling each."""

FUNNEL = "eight_schools_centered"
"""Its neck lets no step size through at which R-hat comes below 1.01 in 4,000 draws: 1.01 to 1.2 is usual."""


def entry_of(name):
    """An entry whose data are here; the test skips when they are not."""
    entry = ENTRIES[name]
    try:
        entry.data()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    return entry


NAMES = [pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in ENTRIES if name != FUNNEL]


def test_the_small_ones_need_no_folder(monkeypatch):
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    for name in (QUICK, FUNNEL, "ark", "garch11", "gp_regr", "kidiq", "lotka_volterra", "mesquite"):
        assert all(np.isfinite(values).all() for values in ENTRIES[name].data().values())


def test_the_others_say_what_is_missing(monkeypatch):
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="PHALANX_DATA is not set"):
        ENTRIES["nes"].data()


@pytest.mark.parametrize("name", NAMES)
def test_reference_posterior(name):
    entry = entry_of(name)
    posterior = phx.mcmc(entry.program, entry.data(), keep=entry.names, progress=False)
    found = compare(entry, posterior.draws)
    assert all(values.dtype == np.float32 for values in posterior.draws.values())
    assert np.abs(found.z).max() < 4 and np.abs(found.sd_error).max() < 0.1
    assert found.r_hat.max() < 1.01 and posterior.stats["diverging"].mean() <= 0.01


@pytest.mark.slow
def test_the_centred_hierarchy_says_what_is_wrong_with_it():
    entry = entry_of(FUNNEL)
    posterior = phx.mcmc(entry.program, entry.data(), keep=entry.names, progress=False)
    found = compare(entry, posterior.draws)
    assert np.abs(found.sd_error).max() < 0.2
    assert not posterior.verdict().good


@pytest.mark.slow
def test_trajectories_of_a_fixed_number_of_leapfrogs():
    entry = entry_of("eight_schools_noncentered")
    kernel = phx.hmc(num_steps=12, target_acceptance=0.9)
    posterior = phx.mcmc(
        entry.program, entry.data(), keep=entry.names, kernel=kernel, num_chains=64, num_warmup=1000, num_samples=2000,
        progress=False,
    )  # fmt: skip
    found = compare(entry, posterior.draws)
    assert np.abs(found.z).max() < 4.5 and np.abs(found.sd_error).max() < 0.1


MANY = {"num_chains": 64, "num_warmup": 500, "num_samples": 300, "progress": False}


def check_many_chains(entry, **options):
    posterior = phx.mcmc(entry.program, entry.data(), keep=entry.names, **MANY, **options)
    found = compare(entry, posterior.draws)
    assert np.abs(found.z).max() < 4 and np.abs(found.sd_error).max() < 0.1
    assert found.r_hat.max() < 1.03


MANY_CHAINS = {"nuts": phx.nuts(), "chees": phx.chees(), "mams": phx.mams(), "laps": phx.laps()}
DIFFERENT = ("eight_schools_noncentered", "garch11", "earnings")
"""A hierarchy, a recursion, and raw units. `benchmarks/many_chain_kernels.py` runs NUTS, ChEES and MAMS on all."""


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("kernel", MANY_CHAINS)
def test_many_chains_of(kernel, name):
    check_many_chains(entry_of(name), kernel=MANY_CHAINS[kernel])
