"""R-hat, ESS, MCSE and HDI are ArviZ's, to 1e-6 and mostly to the last bits, for every kind of chain."""

import warnings

import arviz
import numpy as np
import pytest

from phalanx.diagnostics import ebfmi, ess, hdi, mcse, rhat

OURS = {
    "r_hat": rhat,
    "ess_bulk": ess,
    "ess_tail": lambda draws: ess(draws, "tail"),
    "mcse_mean": mcse,
    "mcse_sd": lambda draws: mcse(draws, "sd"),
    "hdi_low": lambda draws: hdi(draws)[..., 0],
    "hdi_high": lambda draws: hdi(draws)[..., 1],
}
THEIRS = {
    "r_hat": lambda draws: arviz.rhat(draws, method="rank"),
    "ess_bulk": lambda draws: arviz.ess(draws, method="bulk"),
    "ess_tail": lambda draws: arviz.ess(draws, method="tail", prob=(0.05, 0.95)),
    "mcse_mean": lambda draws: arviz.mcse(draws, method="mean"),
    "mcse_sd": lambda draws: arviz.mcse(draws, method="sd"),
    "hdi_low": lambda draws: arviz.hdi(draws.ravel(), 0.94)[0],
    "hdi_high": lambda draws: arviz.hdi(draws.ravel(), 0.94)[1],
}


def autoregressive(random, chains, draws, correlation):
    """Stationary chains whose neighbours are correlated."""
    noise = random.normal(size=(chains, draws)) * np.sqrt(1 - correlation**2)
    values = [random.normal(size=chains)]
    for step in noise.T[1:]:
        values.append(correlation * values[-1] + step)
    return np.stack(values, axis=1)


def repeated(random, chains, draws):
    """Chains that mostly stay where they are, as a random walk's do that rejects."""
    moved = np.where(random.random((chains, draws)) < 0.3, np.arange(draws), 0)
    return np.take_along_axis(random.normal(size=(chains, draws)), np.maximum.accumulate(moved, axis=1), axis=1)


CHAINS = {
    "independent": lambda random, c, n: random.normal(size=(c, n)),
    "correlated": lambda random, c, n: autoregressive(random, c, n, 0.7),
    "nearly still": lambda random, c, n: autoregressive(random, c, n, 0.99),
    "antithetic": lambda random, c, n: autoregressive(random, c, n, -0.5),
    "very antithetic": lambda random, c, n: autoregressive(random, c, n, -0.95),
    "random walk": lambda random, c, n: random.normal(size=(c, n)).cumsum(axis=1),
    "heavy tails": lambda random, c, n: random.standard_cauchy((c, n)),
    "far from zero": lambda random, c, n: 1e6 + random.normal(size=(c, n)),
    "elsewhere": lambda random, c, n: random.normal(size=(c, n)) + np.arange(c)[:, None],
    "counts": lambda random, c, n: random.poisson(2.0, (c, n)).astype(float),
    "tenths": lambda random, c, n: 0.1 * random.poisson(5.0, (c, n)),
    "two values": lambda random, c, n: np.tile(np.arange(n) % 2.0, (c, 1)),
    "rare": lambda random, c, n: (np.arange(c * n).reshape(c, n) % 50 == 3).astype(float),
    "repeated": repeated,
    "float32": lambda random, c, n: random.normal(size=(c, n)).astype(np.float32).astype(float),
}


@pytest.mark.parametrize("kind", CHAINS)
def test_every_element_gets_the_value_arviz_gives_it(kind):
    random = np.random.default_rng(sum(map(ord, kind)))
    for chains, draws in [(1, 100), (2, 4), (2, 5), (4, 7), (4, 21), (3, 101), (4, 400), (64, 30), (64, 9)]:
        values = np.stack([CHAINS[kind](random, chains, draws) for _ in range(3)], axis=-1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ArviZ divides by variances that are zero
            expected = {
                name: [theirs(values[..., i]) if name != "r_hat" or chains > 1 else np.nan for i in range(3)]
                for name, theirs in THEIRS.items()
            }
        for name, ours in OURS.items():
            np.testing.assert_allclose(ours(values), expected[name], 1e-6, err_msg=f"{name} of {chains} x {draws}")


def test_energies_get_the_fraction_arviz_gives_them():
    energy = autoregressive(np.random.default_rng(0), 5, 101, 0.8)
    np.testing.assert_allclose(ebfmi(energy), arviz.bfmi(energy), rtol=1e-12)
