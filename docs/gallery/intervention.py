"""Kidney stones: what if everybody were treated?

Treatment B has the higher rate of success, though treatment A is better for small stones and for large ones: doctors
chose A for large stones. The model has size, choice and success; `phx.do` sets the treatment, whatever the size. Had
everybody had the same treatment, A would succeed more often, by about five percent: Simpson's paradox is gone.

Data: 700 patients (Charig and others, 1986).
"""

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

# (large stone, treatment B): patients, successes
TABLE = {(0, 0): (87, 81), (1, 0): (263, 192), (0, 1): (270, 234), (1, 1): (80, 55)}
PATIENTS = 700


def data():
    rows = [(large, b, row < good) for (large, b), (patients, good) in TABLE.items() for row in range(patients)]
    large, b, success = np.array(rows, int).T
    return {"large": large, "b": b, "success": success}


def model(large=None, b=None, success=None):
    stones = phx.sample("stones", dist.Beta(1.0, 1.0))
    choice = phx.sample("choice", dist.Beta(1.0, 1.0).expand([2]))
    logit = phx.sample("logit", dist.Normal(0.0, 1.5).expand([2, 2]))
    large = phx.sample("large", dist.Bernoulli(stones).expand([PATIENTS]), obs=large)
    b = phx.sample("b", dist.Bernoulli(choice[large]), obs=b)
    phx.deterministic("chance", jax.nn.sigmoid(logit[large, b]))
    phx.sample("success", dist.Bernoulli(logits=logit[large, b]), obs=success)


def run(num_warmup=300, num_samples=500):
    names = ["stones", "choice", "logit"]
    return phx.mcmc(model, data(), keep=names, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    seen = data()
    figure, axes = plt.subplots()
    for b, name in enumerate("AB"):
        set_to = phx.do(model, {"b": np.full(PATIENTS, b)})
        chance = posterior.predictive({}, model=set_to)["chance"].mean(-1)
        axes.hist(chance.ravel(), bins=30, density=True, alpha=0.6, label=f"do({name})")
        axes.axvline(seen["success"][seen["b"] == b].mean(), color=f"C{b}", linestyle="--", label=f"raw rate of {name}")
    axes.legend(frameon=False)
    axes.set(xlabel="rate of success", yticks=[])
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary())
    show(posterior).savefig("intervention.png")
