"""A training step through `phx.fit`, against the same network and loss written directly in Flax and optax.

Both read batches from memory, in random order, and both keep the loss of every step. Plainly written is one jitted
update, called in a loop; its parts are modules of Flax NNX, the transforms and likelihoods of `phx.flows`, which are
functions of arrays, and an optimiser of optax.

A few steps of one and a few of the other take turns in one process, hundreds of times: whatever else a machine does
meanwhile, it does to both. Steps of `phx.fit` are timed between the calls of its `on_block`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side

VAE_BATCH, TRANSFORMER_BATCH, RATE, SIDE = 100, 8, 1e-3, 28
BATCHES = 40
"""Batches that there are of images, which an epoch goes through."""

SIZES = {"width": 64, "layers": 2, "heads": 2, "window": 28}
"""Of the transformer."""

FIRST = 3
"""Turns that are not counted: programs are compiled, and memory is asked for."""

Learn = Callable[[int], None]
"""Makes so many steps."""

Fit = Callable[..., Any]
"""`phx.fit` of a model to images, but for how long and how it is watched."""


def images(options: argparse.Namespace, count: int) -> np.ndarray:
    """Return images as rows of pixels from 0 to 255."""
    if options.data is None:
        return np.random.default_rng(0).integers(0, 256, (count, SIDE**2), np.uint8)
    from phalanx.datasets import mnist

    return mnist(options.data).train_images[:count].reshape(-1, SIDE**2)


def learner(step: Any, params: Any, optimizer: Any, x: np.ndarray, batch: int) -> Learn:
    """Return a function that makes steps of a jitted update, from the state after its last call."""
    import jax

    rng, state, order = np.random.default_rng(0), [params, optimizer.init(params), 0], []

    def learn(count: int) -> None:
        values = []
        for _ in range(count):
            if not order:
                order.extend(rng.permutation(len(x)).reshape(-1, batch))
            rows = jax.device_put(x[order.pop()])
            *state[:2], value = step(*state[:2], rows, jax.random.key(state[2]))
            state[2] += 1
            values.append(value)
        np.asarray([float(value) for value in values])
        jax.block_until_ready(state[:2])

    return learn


# -- the autoencoder of `phalanx demo vae` ----------------------------------------------------------------------------


def vae_by_phalanx(x: np.ndarray) -> Fit:
    import optax

    import phalanx as phx
    from phalanx.demos.vae import VAE

    vae = VAE(SIDE**2)
    rows, objective = phx.batches({"x": x}, VAE_BATCH), phx.guides.elbo(path=False)
    return partial(
        phx.fit, vae.model, vae.encoder, rows, num_particles=1, objective=objective, optimizer=optax.adam(RATE)
    )


def vae_by_hand(x: np.ndarray) -> Learn:
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx
    from jax import random

    from phalanx.demos.vae import VAE, make_network
    from phalanx.flows import InverseAutoregressive, MaskedAutoregressive

    vae, optimizer = VAE(SIDE**2), optax.adam(RATE)
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
            layer = InverseAutoregressive(weights, order, context=context)
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

    return learner(step, params, optimizer, x, VAE_BATCH)


# -- the transformer of `phalanx demo image-transformer` --------------------------------------------------------------


def transformer_by_phalanx(x: np.ndarray) -> Fit:
    import optax

    import phalanx as phx

    network = phx.networks.image_transformer(SIDE, SIDE, **SIZES)

    def model(pixels: Any) -> None:
        outputs = phx.network("transformer", network)(pixels)
        phx.sample("pixels", phx.networks.levels(outputs).to_event(1), obs=pixels)

    return partial(phx.fit, model, None, phx.batches({"pixels": x}, TRANSFORMER_BATCH), optimizer=optax.adam(RATE))


def transformer_by_hand(x: np.ndarray) -> Learn:
    import jax
    import optax
    from flax import nnx

    from phalanx.networks.transformer import ImageTransformer

    graph, weights = nnx.split(ImageTransformer(SIDE, SIDE, **SIZES, rngs=nnx.Rngs(0)), nnx.Param)
    optimizer = optax.adam(RATE)

    @jax.jit
    def step(weights: Any, state: Any, pixels: Any, _: Any) -> Any:
        def loss(weights: Any) -> Any:
            logits = nnx.merge(graph, weights)(pixels)
            return optax.softmax_cross_entropy_with_integer_labels(logits, pixels.astype("int32")).mean()

        value, gradient = jax.value_and_grad(loss)(weights)
        change, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, change), state, value

    return learner(step, weights, optimizer, x, TRANSFORMER_BATCH)


MODELS = {
    "VAE": (vae_by_phalanx, vae_by_hand, VAE_BATCH),
    "transformer": (transformer_by_phalanx, transformer_by_hand, TRANSFORMER_BATCH),
}
"""Of each model, steps through Phalanx and by hand, and images of a batch."""


# -- in turns ---------------------------------------------------------------------------------------------------------


def in_turns(fit: Fit, learn: Learn, rounds: int, steps: int) -> tuple[list[float], list[float]]:
    """Return the seconds of a step, by `fit` and by `learn`, in `rounds` turns of `steps` steps each."""
    import phalanx as phx

    ours, theirs, began = [], [], time.perf_counter()

    def take_turn(report: Any) -> None:
        nonlocal began
        if report.done % steps:  # a block may end before the turn does
            return
        ended = time.perf_counter()
        learn(steps)
        ours.append((ended - began) / steps)
        theirs.append((time.perf_counter() - ended) / steps)
        began = time.perf_counter()

    turns = FIRST + rounds
    fit(num_steps=turns * steps, training=phx.training(every=steps), on_block=take_turn, progress=False)
    return ours[FIRST:], theirs[FIRST:]


def interval(ratios: list[float]) -> list[float]:
    """Return a 95% interval of the median by ranks, valid for any distribution."""
    ordered, count = sorted(ratios), len(ratios)
    rank = max(0, math.floor(count / 2 - 1.96 * math.sqrt(count) / 2))
    return [round(ordered[rank], 4), round(ordered[count - 1 - rank], 4)]


def row(name: str, times: side_by_side.Times) -> dict[str, Any]:
    ours, theirs = f"Phalanx, {name}", f"Flax and optax, {name}"
    found = side_by_side.compare(f"a training step, {name}", ours, theirs, times, at_most=1.03)
    ratios = [a / b for a, b in zip(times[ours], times[theirs], strict=True)]
    of_medians = statistics.median(times[ours]) / statistics.median(times[theirs])
    return {**found, "interval": interval(ratios), "ratio_of_medians": round(of_medians, 4)}


def main() -> None:
    parser = side_by_side.arguments(__doc__, rounds=300)
    parser.add_argument("--data", type=Path, help="folder of MNIST; random images without it")
    parser.add_argument("--turn", type=int, default=2, help="steps of a turn")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    watch, times, rows = side_by_side.Watch(), {}, []
    for name in options.models:
        by_phalanx, by_hand, batch = MODELS[name]
        x = images(options, BATCHES * batch)
        ours, theirs = in_turns(by_phalanx(x), by_hand(x), options.rounds, options.turn)
        times |= {f"Phalanx, {name}": ours, f"Flax and optax, {name}": theirs}
        rows.append(row(name, times))
    settings = {
        "VAE": f"784-256-144, 48-256-4704, 2 + 2 autoregressive layers of 48-256-96, batches of {VAE_BATCH}",
        "transformer": {**SIZES, "batch": TRANSFORMER_BATCH, "pixels": SIDE**2},
        "rounds": options.rounds, "steps_of_a_turn": options.turn,
    }  # fmt: skip
    side_by_side.write("training", rows, settings, watch, options.results, times)


if __name__ == "__main__":
    main()
