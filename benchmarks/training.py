"""A training step through `phx.fit`, against the same network and loss written directly in Flax and optax.

Both read the same batches from memory, in the same order, and both keep the loss of every step. Plainly written is one
jitted update, called in a loop; its parts are modules of Flax NNX, the transforms and likelihoods of `phx.flows`, which
are functions of arrays, and an optimiser of optax.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side
from side_by_side import Measured, Times, Way

BATCH, RATE = 100, 1e-3


def images(options: argparse.Namespace) -> np.ndarray:
    """Images as rows of pixels from 0 to 255."""
    if options.data is None:
        return np.random.default_rng(0).integers(0, 256, (BATCH * options.steps, 784), np.uint8)
    from phalanx.datasets import mnist

    return mnist(options.data).train_images[: BATCH * options.steps].reshape(-1, 784)


# -- the autoencoder of `phalanx demo vae` ----------------------------------------------------------------------------


def vae_by_phalanx(x: np.ndarray, steps: int) -> Callable[[], Measured]:
    import optax

    import phalanx as phx
    from phalanx.demos.vae_programs import VAE

    vae, optimizer = VAE(784), optax.adam(RATE)

    def run() -> Measured:
        fit = phx.fit(
            vae.model, vae.encoder, phx.batches({"x": x}, BATCH), num_particles=1, num_steps=steps, optimizer=optimizer,
            objective=phx.guides.elbo(path=False), training=phx.training(every=steps), progress=False,
        )  # fmt: skip
        return Measured(fit.timing.sampling, steps)  # it has traced its programs before

    return run


def vae_by_hand(x: np.ndarray, steps: int) -> Callable[[], None]:
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx
    from jax import random

    from phalanx.demos.vae_programs import VAE, make_network
    from phalanx.flows import InverseAutoregressive, MaskedAutoregressive

    vae, optimizer = VAE(784), optax.adam(RATE)
    latent, hidden = vae.latent, vae.hidden
    keys = random.split(random.key(0), 6)
    with nnx.use_eager_sharding(False):
        encoder, encoder_weights = nnx.split(make_network(784, 3 * latent, hidden)(nnx.Rngs(0)))
        decoder, decoder_weights = nnx.split(make_network(latent, 6 * 784, hidden)(nnx.Rngs(1)))
    params = {
        "encoder": encoder_weights,
        "decoder": decoder_weights,
        "prior": [MaskedAutoregressive.init(key, latent, (hidden,)) for key in keys[:2]],
        "posterior": [InverseAutoregressive.init(key, latent, (hidden,), latent) for key in keys[2:4]],
    }
    orders = tuple(range(latent))[::-1], tuple(range(latent))

    def normal(x):
        return -0.5 * jnp.sum(x**2, -1) - 0.5 * latent * jnp.log(2 * jnp.pi)

    def loss(params, x, key):
        outputs = nnx.merge(encoder, params["encoder"])(x.astype(jnp.float32) / 255.0)
        loc, log_scale, context = jnp.split(outputs, 3, -1)
        noise = random.normal(key, loc.shape)
        z, log_q = loc + jnp.exp(log_scale) * noise, normal(noise) - jnp.sum(log_scale, -1)
        for weights, order in zip(params["posterior"], orders, strict=True):
            layer = InverseAutoregressive(weights, order, context)
            z, before = layer(z), z
            log_q -= layer.log_abs_det_jacobian(before, z)
        log_p, back = 0.0, z
        for weights, order in list(zip(params["prior"], orders, strict=True))[::-1]:
            layer = MaskedAutoregressive(weights, order)
            back, after = layer.inv(back), back
            log_p -= layer.log_abs_det_jacobian(back, after)
        pixels = vae.pixels_of(nnx.merge(decoder, params["decoder"])(z))
        return jnp.sum(log_q - log_p - normal(back) - jnp.sum(pixels.log_prob(x), -1))

    @jax.jit
    def step(params, state, x, key):
        value, gradient = jax.value_and_grad(loss)(params, x, key)
        change, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, change), state, value

    begun = [params, optimizer.init(params)]

    def run() -> None:
        params, state = begun
        values, order = [], np.random.default_rng(0).permutation(len(x)).reshape(-1, BATCH)
        for number, rows in enumerate(order):
            params, state, value = step(params, state, jax.device_put(x[rows]), random.key(number))
            values.append(value)
        np.asarray([float(value) for value in values])
        jax.block_until_ready((params, state))

    return run


MODELS: Mapping[str, tuple[Any, Any]] = {"VAE": (vae_by_phalanx, vae_by_hand)}
"""Of each model, how a turn is made of it through Phalanx and by hand."""


def ways(options: argparse.Namespace) -> dict[str, Way]:
    found, x = {}, images(options)
    for name, (ours, theirs) in MODELS.items():
        found[f"Phalanx, {name}"] = Way(ours(x, options.steps), options.steps)
        found[f"Flax and optax, {name}"] = Way(theirs(x, options.steps), options.steps)
    return found


def rows(times: Times) -> list[dict[str, Any]]:
    found = []
    for name in MODELS:
        ours, theirs = f"Phalanx, {name}", f"Flax and optax, {name}"
        found.append(side_by_side.compare(f"a training step, {name}", ours, theirs, times, at_most=1.03))
    return found


def settings(options: argparse.Namespace) -> dict[str, Any]:
    network = "784-256-144, 48-256-4704, 2 + 2 autoregressive layers of 48-256-96"
    return {"VAE": network, "batch": BATCH, "steps": options.steps, "rounds": options.rounds}


if __name__ == "__main__":
    parser = side_by_side.arguments(__doc__, rounds=7)
    parser.add_argument("--data", type=Path, help="folder of MNIST; random images without it")
    parser.add_argument("--steps", type=int, default=30, help="steps in a turn")
    side_by_side.run(str(Path(__file__)), parser, (1,), ways, rows, settings)
