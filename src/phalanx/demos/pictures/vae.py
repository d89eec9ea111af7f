"""Pictures of a variational autoencoder: samples, reconstructions, interpolations and the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from phalanx.demos.models.vae_programs import VAE
from phalanx.language.handlers import seed as seeded
from phalanx.language.handlers import substitute
from phalanx.language.tracing import Program
from phalanx.report.plots.style import ACCENT, MUTED, SECOND, explain, finish, new_figure, whole_numbers
from phalanx.variational.result import Fit

if TYPE_CHECKING:
    from jaxtyping import Shaped
    from matplotlib.figure import Figure

COLUMNS, ROWS, BETWEEN = 12, 6, 12


def draw_pictures(
    vae: VAE, learned: Fit, test: Shaped[np.ndarray, "image pixel"], side: tuple[int, ...], seed: int
) -> dict[str, Figure]:
    """Draw samples, reconstructions, interpolations and the loss."""
    key, shape = random.key(seed), tuple(map(int, side))

    def run(*names: str, key: Array) -> Callable[[Program], Any]:
        """Return a function that runs a program with the learned values of its parameters."""
        values = {name: learned.params[name] for name in names}
        return lambda program: seeded(substitute(program, values), key)()

    @jax.jit
    def prior(key: Array) -> Array:
        return run("prior", key=key)(lambda: vae.prior(COLUMNS * ROWS))

    @jax.jit
    def encode(x: Array, key: Array) -> Array:
        return run("encoder", "posterior", key=key)(lambda: vae.encoder(x))

    @jax.jit
    def decode(z: Array) -> Array:
        return vae.brightness(run("decoder", key=key)(lambda: vae.network("decoder")(z)))

    shown = test[:COLUMNS]
    behind = encode(shown, random.fold_in(key, 1))
    weight = jnp.linspace(0.0, 1.0, BETWEEN)[None, :, None]
    pairs = (1 - weight) * behind[: COLUMNS // 2, None] + weight * behind[COLUMNS // 2 :, None]
    grey = shown / (1.0 if vae.binary else 255.0)
    return {
        "samples": _grid("Expected pixels of draws from the prior", decode(prior(key)), ROWS, shape),
        "reconstructions": _grid(
            "Test images, and expected pixels given one draw of their latent variables",
            np.concatenate([grey, np.asarray(decode(behind))]), 2, shape,
        ),
        "interpolation": _grid(
            "From one test image to another, along a line between their latent variables",
            decode(pairs.reshape(-1, vae.latent)), COLUMNS // 2, shape,
        ),
        "loss": _loss(learned),
    }  # fmt: skip


def _grid(title: str, images: np.ndarray, rows: int, shape: tuple[int, ...]) -> Figure:
    images = np.asarray(images).reshape(rows, -1, *shape)
    figure = new_figure(0.75 * images.shape[1], 0.75 * rows + 0.35)
    figure.suptitle(title, fontsize=9, color=MUTED)
    panels = figure.subplots(rows, images.shape[1], squeeze=False)
    for axes, image in zip(panels.flat, images.reshape(-1, *shape), strict=True):
        axes.imshow(image, cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    return figure


def _loss(learned: Fit) -> Figure:
    figure = new_figure(6.0, 3.6)
    axes = figure.subplots()
    steps = [look.step for look in learned.looks]
    axes.plot(steps, [look.bits for look in learned.looks], color=SECOND, linewidth=1.6, label="training")
    axes.plot(steps, [look.held_out_bits for look in learned.looks], color=ACCENT, linewidth=2, label="held out")
    whole_numbers(axes.xaxis)
    finish(axes, "Loss, bits per dimension", "steps", "")
    explain(figure)
    return figure
