"""Earthquakes: a hidden Markov model with its states summed out.

Are there calm and active years? Each year has one of two states, which mostly stays; the number of earthquakes is
Poisson with the rate of the state. `phx.marginalize` sums the 2^107 sequences out, and `phx.recover` draws them.
Active years lie around 1910, in the 1940s and around 1970, and only at their edges is the state in doubt.

Data: major earthquakes a year, 1900 to 2006 (Zucchini and MacDonald, 2009).
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

COUNT = np.array(
    "13 14 8 10 16 26 32 27 18 32 36 24 22 23 22 18 25 21 21 14 8 11 14 23 18 17 19 20 22 19 13 26 13 14 22 "
    "24 21 22 26 21 23 24 27 41 31 27 35 26 28 36 39 21 17 22 17 19 15 34 10 15 22 18 15 20 15 22 19 16 30 27 "
    "29 23 20 16 21 21 25 16 18 15 18 14 10 15 8 15 6 11 8 7 18 16 13 12 13 20 15 16 12 18 15 16 13 15 16 11 "
    "11".split(),
    int,
)
YEAR = 1900 + np.arange(len(COUNT))


def model(count):
    calm = phx.sample("calm", dist.Gamma(4.0, 0.25))
    more = phx.sample("more", dist.Gamma(2.0, 0.2))
    stay = phx.sample("stay", dist.Beta(5.0, 1.0).expand([2]))
    state = phx.sample("state", dist.Bernoulli(0.5).expand(count.shape))
    phx.factor("steps", jnp.log(jnp.where(state[1:] == state[:-1], stay[state[:-1]], 1 - stay[state[:-1]])))
    phx.sample("count", dist.Poisson(jnp.stack([calm, calm + more])[state]), obs=count)


def run(num_warmup=300, num_samples=400):
    return phx.mcmc(phx.marginalize(model), {"count": COUNT}, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    active = phx.recover(posterior)["state"].mean((0, 1))
    figure, axes = plt.subplots()
    axes.bar(YEAR, COUNT, color="0.8", width=1.0)
    rate = posterior["calm"].mean() + posterior["more"].mean() * active
    axes.plot(YEAR, rate, "C1", drawstyle="steps-mid")
    axes.set(xlabel="year", ylabel="earthquakes, and the rate of the state")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary())
    show(posterior).savefig("hidden_markov.png")
