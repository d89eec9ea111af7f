"""Dippers in a flood: capture and recapture.

Did fewer birds survive the two years of a flood? A ringed bird that is not seen again has died or has been missed;
the model of Cormack, Jolly and Seber separates both, with the lives of the birds summed out by hand. A bird released
in year i is next seen in year j if it survives j - i winters and is missed in all years between. Survival is lower in
the flood, with little doubt, and most birds that live are seen.

Data: European dippers, 1981 to 1987 (Lebreton and others, 1992).
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

# One row for each year of release: in which of the next six years the birds were first seen again; the last: never.
SEEN = np.array(
    [
        [11, 2, 0, 0, 0, 0, 9],
        [0, 24, 1, 0, 0, 0, 35],
        [0, 0, 34, 2, 0, 0, 42],
        [0, 0, 0, 45, 1, 2, 32],
        [0, 0, 0, 0, 51, 0, 37],
        [0, 0, 0, 0, 0, 52, 46],
    ]
)
FLOOD = np.array([False, True, True, False, False, False])  # winters


def model(seen):
    normal, flood = phx.sample("survival", dist.Uniform(0.0, 1.0).expand([2]))
    capture = phx.sample("capture", dist.Uniform(0.0, 1.0))
    alive = jnp.cumsum(jnp.log(jnp.where(FLOOD, flood, normal)))
    before = jnp.concatenate([jnp.zeros(1), alive[:-1]])
    years = np.arange(6)[None, :] - np.arange(6)[:, None]  # years between release and sight, less one
    chance = jnp.exp(alive[None, :] - before[:, None] + years * jnp.log1p(-capture)) * capture
    chance = jnp.where(years >= 0, chance, 0.0)
    never = 1.0 - chance.sum(1, keepdims=True)
    phx.sample("seen", dist.Multinomial(seen.sum(1), jnp.concatenate([chance, never], axis=1)), obs=seen)


def run(num_warmup=300, num_samples=500):
    return phx.mcmc(model, {"seen": SEEN}, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    figure, axes = plt.subplots()
    for k, name in enumerate(("survival, other years", "survival, flood")):
        axes.hist(posterior["survival"][..., k].ravel(), bins=40, density=True, alpha=0.6, label=name)
    axes.hist(posterior["capture"].ravel(), bins=40, density=True, alpha=0.6, label="capture")
    axes.legend(frameon=False)
    axes.set(xlabel="probability", yticks=[])
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary())
    show(posterior).savefig("capture_recapture.png")
