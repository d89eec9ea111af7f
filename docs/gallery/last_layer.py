"""A trained network that knows what it does not know: Laplace on its last layer.

Three species of iris, two measurements, and a small network that training makes too sure of itself. The features of
its last hidden layer become data, and a normal about the weights of the last layer is all that is Bayesian. Far from
the flowers the averaged probabilities become unsure, where the trained network is certain. NUTS draws from the
posterior of the same weights, which the normal approximates; the verdict is on those draws. It is usable rather than
good: six of 2,000 diverged.

Data: scikit-learn's iris (Anderson, 1935; Fisher, 1936). Source: Daxberger and others (2021).
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
import optax
from sklearn.datasets import load_iris

import phalanx as phx

IRIS = load_iris()
PETALS = (IRIS.data[:, 2:] - IRIS.data[:, 2:].mean(0)).astype(np.float32)
HIDDEN = 8


def init(key):
    first, second = jax.random.split(key)
    return {"into": jax.random.normal(first, (3, HIDDEN)), "out": 0.1 * jax.random.normal(second, (HIDDEN + 1, 3))}


def features(weights, x):
    one = jnp.ones((len(x), 1))
    return jnp.hstack([jnp.tanh(jnp.hstack([x, one]) @ weights["into"]), one])


def apply(weights, x):
    return features(weights, x) @ weights["out"]


def train(num_epochs=300):
    network = phx.ensembles.learner(init, apply, phx.ensembles.classification_loss, optax.adam(0.03))
    trained = phx.ensemble(network.init, network.update, num_members=1)
    for _ in trained.train((PETALS, IRIS.target), batch_size=50, num_epochs=num_epochs):
        pass
    return jax.device_get(trained.member(0).params)


def model(inputs, species):
    weights = phx.sample("weights", dist.Normal(0.0, 3.0).expand([HIDDEN + 1, 3]))
    phx.sample("species", dist.Categorical(logits=inputs @ weights), obs=species)


def run(num_warmup=300, num_samples=500, num_epochs=300):
    weights = train(num_epochs)
    data = {"inputs": np.asarray(features(weights, PETALS)), "species": IRIS.target}
    return weights, phx.mcmc(model, data, num_warmup=num_warmup, num_samples=num_samples)


def show(weights, posterior):
    x, y = np.meshgrid(np.linspace(-6, 7, 60), np.linspace(-3, 3.5, 60))
    grid = features(weights, np.stack([x, y], -1).reshape(-1, 2).astype(np.float32))
    normal = phx.ensembles.last_layer_laplace(features(weights, PETALS), weights["out"], 1 / 9)
    laplace = phx.ensembles.last_layer_probabilities(normal, grid, jax.random.key(0), 500)
    draws = posterior["weights"].reshape(-1, HIDDEN + 1, 3)[::10]
    nuts = jax.nn.softmax(jnp.einsum("gf,dfc->dgc", grid, draws)).mean(0)
    figure, panels = plt.subplots(1, 3, sharey=True)
    ways = {"trained": jax.nn.softmax(grid @ weights["out"]), "Laplace": laplace, "NUTS": nuts}
    for axes, (title, chance) in zip(panels, ways.items(), strict=True):
        axes.pcolormesh(x, y, np.asarray(chance).max(-1).reshape(x.shape), vmin=1 / 3, vmax=1, cmap="Blues")
        axes.scatter(*PETALS.T, c=IRIS.target, s=3, cmap="autumn")
        axes.set(title=title)
    return figure


if __name__ == "__main__":
    weights, posterior = run()
    print(posterior.summary().head(6), posterior.verdict(), sep="\n\n")
    show(weights, posterior).savefig("last_layer.png")
