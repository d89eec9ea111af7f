"""Baseball: strengths of teams from their matches.

Which of seven teams is the best, and how sure is that? The chance that one team beats another is logistic in the
difference of their strengths, which are draws of one distribution (Bradley and Terry, 1952). Milwaukee is ahead, but
its interval and those of the next four overlap; that Baltimore is the weakest is certain.

Data: the American League's eastern division, 1987, 13 matches of each pair (Agresti, 1990).
"""

import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

TEAMS = ["Milwaukee", "Detroit", "Toronto", "New York", "Boston", "Cleveland", "Baltimore"]
WINS = np.array(
    "0 7 9 7 7 9 11  6 0 7 5 11 9 9  4 6 0 7 7 8 12  6 8 6 0 6 7 10  6 2 6 7 0 7 12  4 4 5 6 6 0 6  2 4 1 3 1 "
    "7 0".split(),
    int,
).reshape(7, 7)
FIRST, SECOND = np.triu_indices(7, 1)


def model(first, second, wins):
    spread = phx.sample("spread", dist.HalfNormal(1.0))
    z = phx.sample("z", dist.ZeroSumNormal(1.0, (7,)))
    strength = phx.deterministic("strength", spread * z)
    phx.sample("wins", dist.Binomial(13, logits=strength[first] - strength[second]), obs=wins)


def run(num_warmup=300, num_samples=1500):
    data = {"first": FIRST, "second": SECOND, "wins": WINS[FIRST, SECOND]}
    return phx.mcmc(
        model, data, dims={"strength": ["team"]}, coords={"team": TEAMS}, num_warmup=num_warmup, num_samples=num_samples
    )


def show(posterior):
    low, middle, high = np.quantile(posterior["strength"], [0.05, 0.5, 0.95], axis=(0, 1))
    figure, axes = plt.subplots()
    axes.hlines(TEAMS[::-1], low[::-1], high[::-1], linewidth=5, alpha=0.5)
    axes.plot(middle, TEAMS, "ko", markersize=4)
    axes.set(xlabel="strength, log odds, 90%")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary(names=["strength", "spread"]), posterior.verdict(), sep="\n\n")
    show(posterior).savefig("bradley_terry.png")
