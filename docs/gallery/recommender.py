"""A recommender: which films will they like?

Forty people have rated a third of thirty films. A rating is the product of a person's and a film's two numbers, and
the product fills the table's empty cells, each with its uncertainty. Factors may be rotated without any change of
their products, so that chains need not agree on factors: `keep=` stores the products and the noise alone, and the
verdict is on them. Predictions follow the true ratings of cells that were not seen.

The data are simulated with seed 0. Model: Salakhutdinov and Mnih (2008); `phalanx demo movielens` is a large one.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

PEOPLE, FILMS, RANK = 40, 30, 2


def data():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(PEOPLE, RANK)) @ rng.normal(size=(RANK, FILMS))
    person, film = np.nonzero(rng.random((PEOPLE, FILMS)) < 1 / 3)
    rating = truth[person, film] + rng.normal(0, 0.5, len(person))
    return {"person": person, "film": film, "rating": rating}, truth


def model(person, film, rating):
    noise = phx.sample("noise", dist.HalfNormal(1.0))
    people = phx.sample("people", dist.Normal(0.0, 1.0).expand([PEOPLE, RANK]))
    films = phx.sample("films", dist.Normal(0.0, 1.0).expand([FILMS, RANK]))
    predicted = phx.deterministic("predicted", people @ films.T)
    phx.sample("rating", dist.Normal(jnp.asarray(predicted)[person, film], noise), obs=rating)


def run(num_warmup=500, num_samples=1000):
    kept = ["predicted", "noise"]
    return phx.mcmc(model, data()[0], keep=kept, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    seen, truth = data()
    new = np.ones((PEOPLE, FILMS), bool)
    new[seen["person"], seen["film"]] = False
    low, middle, high = np.quantile(posterior["predicted"], [0.05, 0.5, 0.95], axis=(0, 1))
    figure, axes = plt.subplots()
    axes.vlines(truth[new], low[new], high[new], alpha=0.15)
    axes.plot(truth[new], middle[new], ".", markersize=3)
    axes.axline((0, 0), slope=1, color="C1")
    axes.set(xlabel="true rating of a cell that was not seen", ylabel="predicted, 90%")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary(names=["noise"]), posterior.verdict(), sep="\n\n")
    show(posterior).savefig("recommender.png")
