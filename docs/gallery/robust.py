"""Stack loss: a regression that outliers do not bend.

How does the loss of an ammonia plant depend on air flow and water? Errors are Student's with inferred degrees of
freedom, so that a day far from the plane counts little. The picture has the weight of each day: four of 21 (the
first, third, fourth and last), which a normal regression would follow, have the lowest.

Data: 21 days of a plant (Brownlee, 1965).
"""

import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

AIR = "80 80 75 62 62 62 62 62 58 58 58 58 58 58 50 50 50 50 50 56 70".split()
WATER = "27 27 25 24 22 23 24 24 23 18 18 17 18 19 18 18 19 19 20 20 20".split()
ACID = "89 88 90 87 87 87 93 93 87 80 89 88 82 93 89 86 72 79 80 82 91".split()
LOSS = "42 37 37 28 18 18 19 20 15 14 14 13 11 12 8 7 8 8 9 15 15".split()


def data():
    x = np.array([AIR, WATER, ACID], float).T
    return {"x": (x - x.mean(0)) / x.std(0), "loss": np.array(LOSS, float)}


def model(x, loss):
    base = phx.sample("base", dist.Normal(17.0, 5.0))
    slope = phx.sample("slope", dist.Normal(0.0, 5.0).expand([3]))
    noise = phx.sample("noise", dist.HalfNormal(4.0))
    tails = phx.sample("tails", dist.Gamma(2.0, 0.3))
    mean = phx.deterministic("mean", base + x @ slope)
    phx.sample("loss", dist.StudentT(tails, mean, noise), obs=loss)


def run(num_warmup=400, num_samples=2000):
    kernel = phx.nuts(target_acceptance=0.95)
    return phx.mcmc(model, data(), kernel=kernel, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    away = (data()["loss"] - posterior["mean"]) / posterior["noise"][..., None]
    tails = posterior["tails"][..., None]
    weight = ((tails + 1) / (tails + away**2)).mean((0, 1))
    figure, axes = plt.subplots()
    axes.bar(range(1, 22), weight, color=["C1" if w in np.sort(weight)[:4] else "C0" for w in weight])
    axes.set(xlabel="day", ylabel="weight of the day", xticks=range(1, 22, 2))
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary(names=["base", "slope", "noise", "tails"]), posterior.verdict(), sep="\n\n")
    show(posterior).savefig("robust.png")
