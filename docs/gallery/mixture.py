"""Irises: a mixture of three species.

Can the length of petals alone separate three species? Each flower belongs to one of three normals, in order of their
means. `phx.marginalize` sums the memberships out, and `phx.recover` draws them. Setosa stands apart. The two other
species overlap between 4.5 and 5.2 cm, where memberships are in doubt.

Data: scikit-learn's iris, 150 flowers (Anderson, 1935; Fisher, 1936); the species are not shown to the model.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from sklearn.datasets import load_iris

import phalanx as phx

IRIS = load_iris()


def model(petal):
    share = phx.sample("share", dist.Dirichlet(jnp.full(3, 5.0)))
    first = phx.sample("first", dist.Normal(1.5, 0.5))
    gap = phx.sample("gap", dist.LogNormal(jnp.array([1.0, 0.3]), 0.3))
    mean = phx.deterministic("mean", first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(gap)]))
    sd = phx.sample("sd", dist.LogNormal(-1.0, 0.5).expand([3]))
    species = phx.sample("species", dist.Categorical(share).expand(petal.shape))
    phx.sample("petal", dist.Normal(mean[species], sd[species]), obs=petal)


def run(num_warmup=400, num_samples=500):
    petal = IRIS.data[:, 2]
    return phx.mcmc(
        phx.marginalize(model), {"petal": petal}, init="prior", num_warmup=num_warmup, num_samples=num_samples
    )


def show(posterior):
    species = phx.recover(posterior)["species"].reshape(-1, 150)
    chance = np.stack([(species == k).mean(0) for k in range(3)], axis=1)
    figure, axes = plt.subplots()
    jitter = np.random.default_rng(0).uniform(-0.2, 0.2, 150)
    axes.scatter(IRIS.data[:, 2], IRIS.target + jitter, c=np.clip(chance, 0, 1), s=12)
    axes.set_yticks(range(3), IRIS.target_names)
    axes.set(xlabel="length of petals, cm", title="colour: posterior membership")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary(names=["share", "mean", "sd"]), posterior.verdict(), sep="\n\n")
    show(posterior).savefig("mixture.png")
