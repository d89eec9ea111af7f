"""The Nile at Aswan: a state space model with a level for each year.

Did the flow of the Nile change, and when? The level takes a random step each year, and the flow is the level with
noise. All hundred levels are latent variables, written as sums of standard normals. The level falls in the years
around 1898, when the first dam was begun, and then stays.

Data: yearly flow, 1871 to 1970, in 10^8 cubic metres (Cobb, 1978). `kalman.py` has the same model without its levels.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

FLOW = np.array(
    "1120 1160 963 1210 1160 1160 813 1230 1370 1140 995 935 1110 994 1020 960 1180 799 958 1140 1100 1210 "
    "1150 1250 1260 1220 1030 1100 774 840 874 694 940 833 701 916 692 1020 1050 969 831 726 456 824 702 1120 "
    "1100 832 764 821 768 845 864 862 698 845 744 796 1040 759 781 865 845 944 984 897 822 1010 771 676 649 "
    "846 812 742 801 1040 860 874 848 890 744 749 838 1050 918 986 797 923 975 815 1020 906 901 1170 912 746 "
    "919 718 714 740".split(),
    float,
)
YEAR = 1871 + np.arange(len(FLOW))


def model(flow):
    start = phx.sample("start", dist.Normal(10.0, 3.0))
    step = phx.sample("step", dist.HalfNormal(1.0))
    noise = phx.sample("noise", dist.HalfNormal(3.0))
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([len(flow) - 1]))
    level = phx.deterministic("level", start + step * jnp.concatenate([jnp.zeros(1), jnp.cumsum(z)]))
    phx.sample("flow", dist.Normal(level, noise), obs=flow)


def run(num_warmup=500, num_samples=2000):
    kernel = phx.nuts(target_acceptance=0.98)
    return phx.mcmc(model, {"flow": FLOW / 100}, kernel=kernel, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    low, middle, high = 100 * np.quantile(posterior["level"], [0.05, 0.5, 0.95], axis=(0, 1))
    figure, axes = plt.subplots()
    axes.fill_between(YEAR, low, high, alpha=0.3)
    axes.plot(YEAR, middle)
    axes.plot(YEAR, FLOW, "k.")
    axes.set(xlabel="year", ylabel="flow, and its level, 90%")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary(names=["start", "step", "noise"]), posterior.verdict(), sep="\n\n")
    show(posterior).savefig("local_level.png")
