"""HMC on the MNIST regression: Phalanx against NumPyro, same step size and trajectory, one chain and four.

Both may use the whole machine as they best can. NumPyro: chains vectorised or in parallel, on one device, or with its
data sharded by hand over two (which its manual does not promise, but JAX makes work). Phalanx: data over one device or
two, or chains over two. The best of each is quoted.

Phalanx reads the pixels as bytes, block by block; NumPyro has them in float32, as one gives them to it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import hmc_blocks
import mnist_regression as regression
import side_by_side
from side_by_side import Times, Way

CHAINS = 1, 4
TARGETS = {1: 0.667, 4: 0.8}


def numpyro_model(x, y):
    import numpyro
    import numpyro.distributions as dist

    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([regression.PIXELS, regression.CLASSES]).to_event(2))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([regression.CLASSES]).to_event(1))
    numpyro.sample("y", dist.Categorical(logits=x @ w + b), obs=y)


def numpyro_block(data, options: argparse.Namespace, **how) -> Callable[[], None]:
    return hmc_blocks.numpyro_block(numpyro_model, data, options, regression.STEP_SIZE, **how)


def ways(options: argparse.Namespace) -> dict[str, Way]:
    import jax

    devices, host = options.serve_on, regression.load(options.data)
    leapfrogs, wide = options.draws * options.leapfrogs, regression.widened(host)
    whole = {name: jax.device_put(values, jax.devices()[0]) for name, values in wide.items()}
    found = {}
    for chains in CHAINS:
        if devices in (1, 2):
            block = regression.phalanx_block(host, options, num_chains=chains, chain=1, data=devices)
            found[f"Phalanx, chains: {chains}, data over {devices}"] = Way(block, leapfrogs)
        if devices == 2 and chains > 1:
            block = regression.phalanx_block(host, options, num_chains=chains, chain=2)
            found[f"Phalanx, chains: {chains}, chains over 2"] = Way(block, leapfrogs)
        if devices == 1:
            block = numpyro_block(whole, options, num_chains=chains, method="vectorized")
            found[f"NumPyro, chains: {chains}, vectorized"] = Way(block, leapfrogs)
        if devices == 2:
            mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
            sharded = jax.device_put(wide, jax.NamedSharding(mesh, jax.P("data")))
            block = numpyro_block(sharded, options, num_chains=chains, method="vectorized")
            found[f"NumPyro, chains: {chains}, vectorized, data sharded by hand over 2"] = Way(block, leapfrogs)
        if devices == chains > 1:
            block = numpyro_block(whole, options, num_chains=chains, method="parallel")
            found[f"NumPyro, chains: {chains}, parallel"] = Way(block, leapfrogs)
    return found


def rows(times: Times) -> list[dict]:
    """Compare with NumPyro as in its manual, and on data sharded by hand, which the manual does not promise."""
    by_hand = "sharded by hand"
    found = []
    for chains in CHAINS:
        ours = side_by_side.fastest(times, f"Phalanx, chains: {chains}")
        theirs = {name: t for name, t in times.items() if name.startswith(f"NumPyro, chains: {chains}")}
        for what, some, at_most in (
            ("NumPyro as documented", {n: t for n, t in theirs.items() if by_hand not in n}, TARGETS[chains]),
            ("NumPyro, data sharded by hand", {n: t for n, t in theirs.items() if by_hand in n}, 1.0),
        ):
            label = f"a leapfrog of every chain, chains: {chains}, {what}"
            found.append(side_by_side.compare(label, ours, side_by_side.fastest(some, ""), times, at_most=at_most))
    return found


if __name__ == "__main__":
    parser = regression.add_options(side_by_side.arguments(__doc__, rounds=7))
    side_by_side.run(__file__, parser, (1, 2, 4), ways, rows, regression.settings)
