"""A poll of the wrong people: multilevel regression and post-stratification.

What would everybody answer, if the old are asked too often? A logistic regression with levels for 4 ages and 12
regions learns the answers of each of the 48 cells, and the census weighs them. The raw share of yes is far off; the
weighted one covers the truth, for the country and for most regions, some of which have a handful of answers.

Poll and census are simulated with seed 0.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

AGES, REGIONS = 4, 12
AGE, REGION = np.indices((AGES, REGIONS)).reshape(2, -1)


def data():
    rng = np.random.default_rng(0)
    truth = 1 / (1 + np.exp(-(np.linspace(1.2, -1.2, AGES)[AGE] + rng.normal(0, 0.4, REGIONS)[REGION])))
    census = rng.dirichlet(np.full(AGES * REGIONS, 5.0))
    asked = rng.multinomial(800, census * np.array([1, 2, 5, 9])[AGE] / (census * np.array([1, 2, 5, 9])[AGE]).sum())
    return {"asked": asked, "yes": rng.binomial(asked, truth)}, census, truth


def model(asked, yes):
    base = phx.sample("base", dist.Normal(0.0, 1.0))
    spread = phx.sample("spread", dist.HalfNormal(1.0).expand([2]))
    age = phx.sample("age", dist.Normal(0.0, 1.0).expand([AGES]))
    region = phx.sample("region", dist.Normal(0.0, 1.0).expand([REGIONS]))
    logit = base + spread[0] * age[AGE] + spread[1] * region[REGION]
    phx.deterministic("share", jax.nn.sigmoid(logit))
    phx.sample("yes", dist.Binomial(jnp.asarray(asked), logits=logit), obs=yes)


def run(num_warmup=400, num_samples=500):
    kernel = phx.nuts(target_acceptance=0.95)
    return phx.mcmc(model, data()[0], kernel=kernel, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    poll, census, truth = data()
    figure, axes = plt.subplots()
    for region in range(REGIONS + 1):
        cells = np.full(AGES * REGIONS, True) if region == REGIONS else REGION == region
        weight = np.where(cells, census, 0.0) / census[cells].sum()
        axes.vlines(region, *np.quantile(posterior["share"] @ weight, [0.05, 0.95]), color="C0", linewidth=5, alpha=0.5)
        axes.plot(region, truth @ weight, "k.")
        axes.plot(region, poll["yes"][cells].sum() / max(poll["asked"][cells].sum(), 1), "C1x")
    axes.set_xticks([REGIONS], ["all"])
    axes.set(ylabel="yes: 90%, truth (dot), raw share (cross)")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary(names=["base", "spread"]), posterior.verdict(), sep="\n\n")
    show(posterior).savefig("poststratification.png")
