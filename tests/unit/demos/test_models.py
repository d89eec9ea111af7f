"""Models, guides and networks of the demos, traced on small data without a run: their draws and their densities."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest

import phalanx as phx
from phalanx.demos import chains, covertype, digits, ensemble, image_transformer, mixture, movielens
from phalanx.demos.vae import VAE
from phalanx.ensembles import classification_loss, nnx_learner
from phalanx.networks import image_transformer as make_transformer

IMAGES = jax.ShapeDtypeStruct((5, 16), jnp.uint8)
ROWS = jax.ShapeDtypeStruct((5, 3), jnp.float32)
LABELS = jax.ShapeDtypeStruct((5,), jnp.int32)
WATCHED = jax.ShapeDtypeStruct((6, 4), jnp.int8)
SHOWN = jax.ShapeDtypeStruct((6, 4), bool)
COLUMNS = jax.ShapeDtypeStruct((6, 1), jnp.int32)
GREY, BINARY = (VAE(pixels=16, latent=3, hidden=4, binary=binary) for binary in (False, True))
TRANSFORMER = make_transformer(4, 4, width=8, layers=1, heads=2, window=4)


def factorisation(watched, shown, columns):
    movielens.model(watched, shown, columns, dimensions=2)


PROGRAMS = {
    "chains": (chains.model, (), {"x": (2,)}),
    "mixture as written": (mixture.model_as_written, (), {"x": ()}),
    "covertype": (covertype.model, (ROWS, LABELS), {"w": (3,), "y": (5,)}),
    "digits": (digits.model, (IMAGES, LABELS), {"w": (16, 10), "b": (10,), "y": (5,)}),
    "movielens": (
        factorisation,
        (WATCHED, SHOWN, COLUMNS),
        {"film_embeddings": (4, 2), "film_biases": (4,), "user_embeddings": (6, 2), "user_biases": (6,),
         "watched": (6, 4)},
    ),
    "vae model": (GREY.model, (IMAGES,), {"z": (5, 3), "x": (5, 16)}),
    "vae encoder": (GREY.encoder, (IMAGES,), {"z": (5, 3)}),
    "vae model, binary": (BINARY.model, (IMAGES,), {"z": (5, 3), "x": (5, 16)}),
    "vae encoder, binary": (BINARY.encoder, (IMAGES,), {"z": (5, 3)}),
    "image-transformer": (image_transformer.make_model(TRANSFORMER), (IMAGES,), {"pixels": (5, 16)}),
}  # fmt: skip


@pytest.mark.parametrize("program, data, shapes", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_has_draws_and_a_density_on_its_data(program, data, shapes):
    def draw(*data):
        sites = phx.trace(phx.seed(program, jax.random.key(0)))(*data)
        laws = {name: (site.value, site.distribution) for name, site in sites.items()}
        return {name: (x, jnp.sum(law.log_prob(x))) for name, (x, law) in laws.items() if law is not None}

    traced = jax.eval_shape(draw, *data)
    assert {name: value.shape for name, (value, _) in traced.items()} == shapes
    assert all(density.shape == () and density.dtype == jnp.float32 for _, density in traced.values())


def test_the_network_of_the_ensemble_has_an_output_for_each_class():
    network = nnx_learner(ensemble.make_cnn(8, 10), classification_loss, optax.sgd(0.1))

    def outputs(images):
        return network.apply(network.init(jax.random.key(0)), images)

    assert jax.eval_shape(outputs, jax.ShapeDtypeStruct((5, 8, 8), jnp.uint8)).shape == (5, 10)
