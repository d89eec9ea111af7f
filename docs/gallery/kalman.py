"""The Nile again: a Kalman filter as the likelihood.

Two scales are asked for; the hundred levels need not be drawn, since given the scales all is normal. The filter adds
up the exact log density of each year given the years before, and `phx.factor` makes it a term of the model. Two
numbers are left, so that chains need no warm-up to speak of, and the answer is that of `local_level.py`.

Data: yearly flow, 1871 to 1970, in 10^8 cubic metres (Cobb, 1978). Source of the filter: Kalman (1960).
"""

import jax
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


def kalman(flow, step, noise):
    """Filter from a level that is normal with mean 10 and sd 3: log densities of the years, and means of levels."""

    def year(state, y):
        mean, variance = state
        total = variance + noise**2
        density = dist.Normal(mean, jnp.sqrt(total)).log_prob(y)
        gain = variance / total
        mean, variance = mean + gain * (y - mean), (1 - gain) * variance
        return (mean, variance + step**2), (density, mean)

    return jax.lax.scan(year, (jnp.float32(10.0), jnp.float32(9.0)), jnp.asarray(flow, jnp.float32))[1]


def model(flow):
    step = phx.sample("step", dist.HalfNormal(1.0))
    noise = phx.sample("noise", dist.HalfNormal(3.0))
    phx.factor("flow", kalman(flow, step, noise)[0].sum())


def run(num_warmup=300, num_samples=500):
    kernel = phx.nuts(target_acceptance=0.95)
    return phx.mcmc(model, {"flow": FLOW / 100}, kernel=kernel, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    means = 100 * posterior.predict(lambda draw: kalman(FLOW / 100, draw["step"], draw["noise"])[1])
    figure, axes = plt.subplots()
    axes.plot(YEAR, means.reshape(-1, len(YEAR))[::100].T, "C0", linewidth=0.5)
    axes.plot(YEAR, FLOW, "k.")
    axes.set(xlabel="year", ylabel="flow, and filtered levels of 20 draws")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary())
    show(posterior).savefig("kalman.png")
