from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import phalanx as phx
from phalanx.networks.pixels import image_transformer, levels, logistics, pixel_sampler

ROWS, COLUMNS = 4, 5
PIXELS = ROWS * COLUMNS
SMALL = {"width": 8, "layers": 2, "heads": 2}
CASES = {
    "all, levels": (levels, {}),
    "window, levels": (levels, {"window": 6}),
    "window, logistics": (logistics, {"window": 6, "outputs": 9}),
}
cases = pytest.mark.parametrize(
    "likelihood, sizes",
    [pytest.param(*c, id=n, marks=[pytest.mark.slow] if "levels" in n else []) for n, c in CASES.items()],
)


@cache
def made(**sizes):
    """A network and weights that are far from the first ones, at which nothing would be seen of what is before."""
    network, random = image_transformer(ROWS, COLUMNS, **{**SMALL, **sizes}), np.random.default_rng(0)

    def weight(path, leaf):
        first = 1.0 if "scale" in jax.tree_util.keystr(path) else 0.0
        return jnp.asarray(first + 0.3 * random.normal(size=leaf.shape), leaf.dtype)

    return network, jax.tree_util.tree_map_with_path(weight, jax.eval_shape(network.init, jax.random.key(0)))


def some_images(count=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size=(count, PIXELS)).astype(np.uint8)


@pytest.mark.slow
@cases
def test_the_log_likelihood_is_the_sum_of_its_conditionals(likelihood, sizes):
    """The program's, against distributions asked for one by one, each of which knows only the pixels before."""
    network, weights = made(**sizes)
    images = some_images()

    def model(pixels):
        outputs = phx.network("transformer", network)(pixels)
        phx.sample("pixels", likelihood(outputs).to_event(1), obs=pixels)

    @jax.jit
    def of_whole(images):
        return phx.trace(phx.substitute(model, {"transformer": weights}))(images)["pixels"].log_prob()

    @jax.jit
    def of_one(known, i):
        return likelihood(network.apply(weights, known)[:, i]).log_prob(jnp.arange(256)[:, None])

    whole, total = of_whole(images), np.zeros(len(images))
    for i in range(PIXELS):
        every = np.asarray(of_one(np.where(np.arange(PIXELS) < i, images, 0).astype(np.uint8), i))
        np.testing.assert_allclose(np.exp(every).sum(0), 1.0, rtol=1e-4)
        total += every[images[:, i], np.arange(len(images))]
    np.testing.assert_allclose(whole, total, rtol=1e-5)


@cases
def test_a_pixel_changes_only_what_comes_after(likelihood, sizes):
    network, weights = made(**sizes)
    images = some_images(1)
    apply = jax.jit(network.apply)
    before = np.tile(images, (PIXELS, 1))
    changed = before.copy()
    changed[np.arange(PIXELS), np.arange(PIXELS)] += 101
    moved = np.abs(np.asarray(apply(weights, changed) - apply(weights, before))).max(-1) > 1e-5
    seen = np.triu(np.ones((PIXELS, PIXELS), bool), 1)
    assert not moved[~seen].any()
    assert moved[np.arange(PIXELS - 1), np.arange(1, PIXELS)].all()
    if "window" not in sizes:
        assert moved[seen].all()


@pytest.mark.parametrize("window", [PIXELS - 1, PIXELS, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_window_that_covers_all_is_none(window):
    network, weights = made()
    local = image_transformer(ROWS, COLUMNS, window=window, **SMALL)
    images = some_images()
    found, expected = jax.jit(lambda *given: (local.apply(*given), network.apply(*given)))(weights, images)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@cases
def test_drawing_with_the_cache_draws_what_it_draws_without(likelihood, sizes):
    network, weights = made(**sizes)
    images = some_images(4)
    samplers = [pixel_sampler(network, likelihood, cached=cached) for cached in (True, False)]
    for known, temperature in ((0, 1.0), (9, 0.5)):
        fast, slow = (np.asarray(s(weights, jax.random.key(3), images, known, temperature)) for s in samplers)
        np.testing.assert_array_equal(fast, slow)
        np.testing.assert_array_equal(fast[:, :known], images[:, :known])
        assert (fast[:, known:] != images[:, known:]).any()
    other = samplers[0](weights, jax.random.key(4), images, 0, 1.0)
    assert (np.asarray(other) != np.asarray(samplers[0](weights, jax.random.key(3), images, 0, 1.0))).any()


@pytest.mark.slow
def test_draws_have_the_networks_frequencies():
    """Of the first two pixels, 4,000 draws against their exact probabilities: within 6 standard errors."""
    network, weights = made()
    images = np.zeros((4000, PIXELS), np.uint8)
    drawn = np.asarray(pixel_sampler(network, levels)(weights, jax.random.key(0), images, 0, 1.0))
    first = np.asarray(levels(network.apply(weights, images[:1])[0, 0]).probs)  # pyright: ignore[reportAttributeAccessIssue]
    each = np.zeros((256, PIXELS), np.uint8)
    each[:, 0] = np.arange(256)
    second = first @ np.asarray(levels(network.apply(weights, each)[:, 1]).probs)  # pyright: ignore[reportAttributeAccessIssue]
    for pixel, probability in ((0, first), (1, second)):
        found = np.bincount(drawn[:, pixel], minlength=256) / 4000
        assert (np.abs(found - probability) < 6 * np.sqrt(probability / 4000) + 1e-3).all()


@pytest.mark.parametrize("likelihood, outputs", [(levels, 256), (logistics, 9)])
def test_a_low_temperature_makes_what_is_probable_more_so(likelihood, outputs):
    values = jax.random.normal(jax.random.key(0), (outputs,))
    cold, warm = jax.jit(lambda v: [likelihood(v, t).log_prob(jnp.arange(256)) for t in (0.5, 1.0)])(values)
    assert -(jnp.exp(cold) * cold).sum() < -(jnp.exp(warm) * warm).sum()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.3, 1.0, np.float32(1.0)])
def test_gradients_of_levels_are_those_of_a_softmax(temperature):
    """Also where several logits are the largest; and in training nothing is done to them beforehand."""
    outputs, pixel = jnp.zeros(256).at[jnp.array([3, 200])].set(2.0), jnp.arange(5)

    def log_prob(outputs):
        return jnp.sum(levels(outputs, temperature).log_prob(pixel))

    expected = (pixel.size * -jax.nn.softmax(outputs / temperature)).at[pixel].add(1.0) / temperature
    np.testing.assert_allclose(jax.grad(log_prob)(outputs), expected, atol=1e-5)
    assert levels(outputs).logits is outputs  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1e-40, 1e-8])
def test_at_no_temperature_each_pixel_is_the_most_probable(temperature):
    network, weights = made()
    expected = jnp.zeros((1, PIXELS), jnp.uint8)
    for pixel in range(PIXELS):
        best = network.apply(weights, expected)[0, pixel].argmax()
        expected = expected.at[0, pixel].set(best.astype(jnp.uint8))
    sampler = pixel_sampler(network, levels)
    drawn = sampler(weights, jax.random.key(5), jnp.zeros((2, PIXELS), jnp.uint8), 0, temperature)
    np.testing.assert_array_equal(drawn, jnp.tile(expected, (2, 1)))
    with pytest.raises(ValueError, match=r"temperature must be 0 or above; got -1.0"):
        sampler(weights, jax.random.key(5), expected, 0, -1.0)


def test_at_no_temperature_there_is_the_location_of_the_most_probable_component():
    outputs = jnp.array([0.0, 3.0, 1.0, -0.5, 0.25, 0.9, 1.0, 1.0, 1.0])  # logits, locations, log scales
    drawn = jnp.asarray(logistics(outputs, 0.0).sample(jax.random.key(0), (20,)))
    np.testing.assert_array_equal(drawn, np.round(127.5 * 1.25))


@pytest.mark.parametrize(
    "images, error, words",
    [
        (
            np.zeros((2, PIXELS - 1), np.uint8),
            ValueError,
            r"must be \(images, 20\), of 4 rows and 5 columns; got \(2, 19",
        ),
        (np.zeros((2, ROWS, COLUMNS), np.uint8), ValueError, r"reshape\(len\(images\), -1\)"),
        (np.zeros((2, PIXELS), np.float32), TypeError, "whole numbers from 0 to 255; got float32"),
    ],
)
def test_images_of_other_values_are_refused(images, error, words):
    network, weights = made()
    with pytest.raises(error, match=words):
        network.apply(weights, images)
    with pytest.raises(error, match=words):
        pixel_sampler(network, levels)(weights, jax.random.key(0), images, 0, 1.0)


@pytest.mark.slow
def test_half_precision_is_computed_in_and_not_kept():
    exact, weights = made()
    network = image_transformer(ROWS, COLUMNS, dtype=jnp.bfloat16, **SMALL)
    assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(network.init, jax.random.key(0)))} == {
        jnp.dtype("float32")
    }
    images = some_images()
    found, expected = (jax.jit(of.apply)(weights, images) for of in (network, exact))
    assert found.dtype == jnp.float32
    products = str(jax.make_jaxpr(network.apply)(weights, images))
    assert "bf16" in products
    np.testing.assert_allclose(found, expected, atol=0.1 * float(jnp.abs(expected).max()))
    assert float(jnp.abs(found - expected).max()) > 0


def test_weights_say_how_they_lie_over_the_mesh():
    specs = image_transformer(ROWS, COLUMNS, **SMALL).specs["blocks"][0]
    assert specs["attended"]["kernel"] == PartitionSpec(None, "model", None)
    assert specs["found"]["kernel"] == PartitionSpec("model", None, None)
    assert specs["hidden"]["kernel"] == PartitionSpec(None, "model")
    assert specs["shown"]["kernel"] == PartitionSpec("model", None)


def test_heads_divide_the_width():
    with pytest.raises(ValueError, match="ImageTransformer: width must be a multiple of heads, got 9 and 2."):
        image_transformer(ROWS, COLUMNS, width=9, heads=2)
