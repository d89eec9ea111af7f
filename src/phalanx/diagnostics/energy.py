"""Energy Bayesian fraction of missing information (E-BFMI) of each chain."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from phalanx.diagnostics.elements import as_draws

LOW_EBFMI = 0.3
"""Below this the momentum moves the energy too little for the tails to be trusted (Betancourt, 2016)."""


def ebfmi(energy: np.ndarray) -> np.ndarray:
    r"""Return the energy Bayesian fraction of missing information, one number per chain.

    With $E_n$ the energy (Hamiltonian) of draw `n`,

    $$\mathrm{BFMI} = \frac{\frac{1}{N-1} \sum_n (E_n - E_{n-1})^2}{\operatorname{var}(E)}.$$

    Below 0.3, a fresh momentum moves the energy too little: the chain makes a random walk through energies, and
    estimates of its tails are unreliable.

    Args:
        energy: the energy of each draw, `(chain, draw)`.

    Returns:
        One number per chain, of shape `(chain,)`; NaN where the energies are not finite, are constant, or are fewer
        than two.

    Raises:
        ValueError: when there are no draws or an axis is missing.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics import ebfmi
        >>> ebfmi(np.random.default_rng(0).normal(size=(4, 1000))).shape
        (4,)

    Source: M. Betancourt (2016), Diagnosing suboptimal cotangent disintegrations in Hamiltonian Monte Carlo.
    """
    energy = as_draws(energy, "energy").astype(np.float64)
    if energy.ndim != 2:
        raise ValueError(f"energy: expected an array of shape (chain, draw); got shape {energy.shape}.")
    if energy.shape[1] < 2:
        return np.full(len(energy), np.nan)
    # the variance of equal energies may be rounding alone, so their range decides
    with np.errstate(all="ignore"):
        mean_square_steps = np.square(np.diff(energy, axis=1)).sum(axis=1) / (energy.shape[1] - 1)
        return np.where(np.ptp(energy, axis=1) > 0, mean_square_steps / energy.var(axis=1, ddof=1), np.nan)


def has_energy(stats: Mapping[str, np.ndarray]) -> bool:
    """Return whether the kernel has a kinetic energy; a random walk reports NaN, or the potential energy alone."""
    energy = stats.get("energy")
    if energy is None or not np.isfinite(energy).any():
        return False
    log_density = stats.get("log_density")
    return log_density is None or not np.array_equal(energy, -log_density, equal_nan=True)
