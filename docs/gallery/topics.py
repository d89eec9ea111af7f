"""Topics of pixels: a latent Dirichlet allocation with its assignments summed out.

Which patterns are images made of? An image is a bag of ink drops, each of which belongs to one of two topics, and a
topic is a distribution over the 64 pixels. Summed over its topic, a drop falls by the mixture of topics of its image.
A prior that favours the four pixels in the middle for the second topic names the topics, and chains begin at its
mean; from other starts a chain may stay where the names are swapped. The topics turn out to be a ring and a bar, and
the shares of images separate zeros from ones without their labels. The verdict is usable rather than good: three of
209 quantities have fewer than 400 effective draws.

Data: 40 images of scikit-learn's digits, a third of their ink. Model: Blei, Ng and Jordan (2003).
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from sklearn.datasets import load_digits

import phalanx as phx


def data():
    digits = load_digits(n_class=2)
    return {"drops": np.round(digits.data[:40] / 3).astype(int)}, digits.target[:40]


MIDDLE = np.pad(np.full((2, 2), 8.0), 3).ravel()
PRIOR = np.stack([np.full(64, 0.7), 0.7 + MIDDLE])


def model(drops):
    topic = phx.sample("topic", dist.Dirichlet(jnp.asarray(PRIOR, jnp.float32)))
    share = phx.sample("share", dist.Dirichlet(jnp.ones(2)).expand([len(drops)]))
    phx.sample("drops", dist.Multinomial(drops.sum(1), share @ topic), obs=drops)


def run(num_warmup=400, num_samples=400):
    init = {"topic": PRIOR / PRIOR.sum(1, keepdims=True), "share": np.full((40, 2), 0.5)}
    return phx.mcmc(model, data()[0], init=init, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    figure, panels = plt.subplots(1, 3)
    for axes, topic in zip(panels, posterior["topic"].mean((0, 1)), strict=False):
        axes.imshow(topic.reshape(8, 8), cmap="Blues")
        axes.set(title="a topic", xticks=[], yticks=[])
    share, digit = posterior["share"].mean((0, 1))[:, 1], data()[1]
    panels[2].hist([share[digit == 0], share[digit == 1]], bins=np.linspace(0, 1, 11), stacked=True)
    panels[2].legend(["zeros", "ones"], frameon=False)
    panels[2].set(xlabel="share of topic 2")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary(names=["share"]).head(8), posterior.verdict(), sep="\n\n")
    show(posterior).savefig("topics.png")
