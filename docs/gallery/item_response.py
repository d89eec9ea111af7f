"""A law school test: item response theory.

How hard are the five questions, and how well do they separate good from weak candidates? The chance of a right answer
is logistic in a person's ability, with a slope and a level for each question (two-parameter logistic). A thousand
abilities are integrated out by quadrature, so that only the ten numbers of the questions are inferred. Question 1 is
the easiest and question 3 the hardest; five answers say little about slopes, whose intervals are wide.

Data: the LSAT, section 6 (Bock and Lieberman, 1970), as counts of the 32 patterns of answers.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

COUNT = np.array("3 6 2 11 1 1 3 4 1 8 0 16 0 3 2 15 10 29 14 81 3 28 15 80 16 56 21 173 11 61 28 298".split(), float)
RIGHT = np.array([[int(digit) for digit in f"{pattern:05b}"] for pattern in range(32)], float)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def model(count):
    level = phx.sample("level", dist.Normal(0.0, 2.0).expand([5]))
    slope = phx.sample("slope", dist.LogNormal(0.0, 0.5).expand([5]))
    logit = level[None, :] + slope[None, :] * NODES[:, None]  # (ability, question)
    log_right, log_wrong = jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit)
    pattern = RIGHT @ log_right.T + (1 - RIGHT) @ log_wrong.T  # (pattern, ability)
    phx.factor("answers", count @ jax.nn.logsumexp(pattern + jnp.log(WEIGHTS)[None, :], axis=1))


def run(num_warmup=300, num_samples=500):
    return phx.mcmc(model, {"count": COUNT}, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    ability = np.linspace(-3, 3, 60)
    level, slope = posterior["level"].mean((0, 1)), posterior["slope"].mean((0, 1))
    figure, axes = plt.subplots()
    axes.plot(ability, 1 / (1 + np.exp(-level - slope * ability[:, None])))
    axes.legend([f"question {number}" for number in range(1, 6)], frameon=False)
    axes.set(xlabel="ability, standard deviations", ylabel="chance of a right answer")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary())
    show(posterior).savefig("item_response.png")
