"""Members over `chain`, rows of each member's batches over `data`: what is learned is what one device learns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import phalanx as phx
from phalanx.networks.transformer import ImageTransformer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(27, 5)).astype(np.float32)
Y = (X @ RNG.normal(size=(5, 3))).argmax(1).astype(np.int32)
IMAGES = RNG.integers(0, 256, size=(16, 9)).astype(np.uint8)


class Small(nnx.Module):
    """Statistics of batches and dropout: what a device that saw only its rows would get wrong."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(5, 8, rngs=rngs)
        self.normalised = nnx.BatchNorm(8, rngs=rngs)
        self.dropped = nnx.Dropout(0.3, rngs=rngs)
        self.logits = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.logits(self.dropped(nnx.relu(self.normalised(self.hidden(x)))))


def small():
    return phx.ensembles.nnx_learner(Small, phx.ensembles.classification_loss, optax.sgd(0.1))


def trained(mesh, members=3, learner=None, **options):
    learner = learner or small()
    ensemble = phx.ensemble(learner.init, learner.update, members, mesh=mesh)
    options = {"batch_size": 8, "num_epochs": 2, "apply": learner.apply, **options}
    return ensemble, list(ensemble.train((X, Y), **options)), ensemble.predict(learner.apply, X, batch_size=10)


@pytest.fixture(scope="module")
def alone():
    return trained(phx.make_mesh(chain=1, devices=jax.devices()[:1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "chain, data", [(2, 4), *(pytest.param(*c, marks=pytest.mark.slow) for c in ((1, 8), (4, 2), (8, 1)))]
)
def test_losses_and_predictions_are_those_of_one_device(alone, chain, data, mesh_of):
    """27 rows in batches of 8: three that come out even over the devices, and one of 3 that does not."""
    ensemble, measured, prediction = trained(mesh_of(chain, data))
    for found, expected in zip(measured, alone[1], strict=True):
        assert found.keys() == {"loss", "accuracy", "ensemble_loss", "ensemble_accuracy"}
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(prediction.probabilities, alone[2].probabilities, rtol=1e-3, atol=1e-5)
    hidden = jax.tree.leaves(ensemble._members.states[0].params)[0]
    assert hidden.sharding.is_equivalent_to(ensemble._members.placement.place(hidden).sharding, hidden.ndim)


def test_rows_of_a_batch_lie_over_devices(mesh_of):
    """Seen in what is compiled: each device multiplies its own rows, and gradients are added up."""
    learner = small()
    ensemble = phx.ensemble(learner.init, learner.update, 2, mesh=mesh_of(2, 4))
    states, keys = (tuple(part[:1]) for part in (ensemble._members.states, ensemble._members.keys))
    batch = ensemble._members.placement.everywhere((X[:8], Y[:8]))
    step: Any = ensemble._members.compile_step(False)
    hlo = step.lower(states, keys, batch, None, jnp.uint32(0)).compile().as_text()
    assert " all-reduce(" in hlo or " all-reduce-start(" in hlo
    assert "f32[2,5]" in hlo and "f32[8,8]" not in hlo.replace("f32[8,8]{1,0} parameter", "")


@pytest.mark.slow
def test_the_ensembles_own_scores_are_of_the_mean_of_its_members(alone):
    _, measured, prediction = alone
    scores = prediction.scores(Y)
    np.testing.assert_allclose(measured[-1]["ensemble_accuracy"], scores.accuracy)
    np.testing.assert_allclose(measured[-1]["ensemble_loss"], scores.nll, rtol=1e-5)
    of_truth = prediction.probabilities.mean(0)[np.arange(27), Y]
    np.testing.assert_allclose(measured[-1]["ensemble_loss"], -np.log(of_truth).mean(), rtol=1e-5)


@pytest.mark.parametrize("order", ["shared", pytest.param("own", marks=pytest.mark.slow)])
def test_a_ragged_last_batch_is_dropped_on_request(order):
    def update(state, batch, key):
        return state + len(batch), {"rows": jnp.float32(len(batch))}

    ensemble = phx.ensemble(lambda key: jnp.int32(0), update, 2)
    for drop_last, seen in ((True, [24, 24]), (False, [51, 51])):
        for _ in ensemble.train(X, batch_size=8, order=order, drop_last=drop_last):
            assert ensemble.members.tolist() == seen
    with pytest.raises(ValueError, match="ensemble.train: with drop_last=True the 27 rows make no batch of 28."):
        ensemble.train(X, batch_size=28, drop_last=True)
    with pytest.raises(ValueError, match=r"with apply= the data must be a pair, \(inputs, labels\); got ndarray."):
        ensemble.train(X, batch_size=8, apply=lambda state, x: x)


def log_likelihood(outputs, pixels):
    return jnp.sum(phx.networks.levels(outputs).log_prob(pixels), -1)


@pytest.mark.slow
def test_a_small_ensemble_of_transformers(mesh_of):
    """Members are those trained alone, and the mixture of their densities is no worse than the mean member's."""
    learner = phx.ensembles.nnx_learner(
        lambda rngs: ImageTransformer(3, 3, width=8, layers=1, heads=2, window=3, rngs=rngs),
        lambda outputs, pixels: -log_likelihood(outputs, pixels).mean(),
        optax.sgd(1e-3),  # no gradient of a key's shift but rounding, which Adam would make steps of
    )
    ensemble = phx.ensemble(learner.init, learner.update, 3, mesh=mesh_of(2, 2))
    for _ in ensemble.train((IMAGES, IMAGES), batch_size=8, num_epochs=2, drop_last=True):
        pass
    state = learner.init(ensemble.member_key(1))
    for epoch in range(2):
        order = np.random.default_rng([0, epoch]).permutation(16)
        for rows in (order[:8], order[8:]):
            state, _ = jax.jit(learner.update)(state, (IMAGES[rows], IMAGES[rows]), jax.random.key(0))
    found = jax.tree.leaves(ensemble.member(1).params)
    for leaf, expected in zip(found, jax.tree.leaves(state.params), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-3, atol=1e-4)

    def of_member(state, pixels):
        return log_likelihood(learner.apply(state, pixels), pixels)

    each = ensemble.map(of_member, IMAGES)
    mixture = jax.nn.logsumexp(each, axis=0) - np.log(3)
    assert each.shape == (3, 16)
    assert (mixture >= each.mean(0) - 1e-3).all()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["nuts", "laplace"])
def test_the_last_layer_of_a_transformer_as_random_variables(way):
    """Its features are data; the last layer's weights have a prior, and their posterior means predict as it does."""
    network = phx.networks.image_transformer(3, 3, width=4, layers=1, heads=2)
    weights = network.init(jax.random.key(0))
    features = np.asarray(network.apply(weights, IMAGES, method="features"), np.float32).reshape(-1, 4)
    bright = (IMAGES.reshape(-1) > 127).astype(np.int32)

    def last_layer(features, bright):
        out = phx.random_network("out", lambda key: {"kernel": jnp.zeros((4, 2))}, lambda p, x: x @ p["kernel"])
        phx.sample("bright", phx.networks.levels(out(features)), obs=bright)

    data = {"features": features, "bright": bright}
    if way == "nuts":
        draws = phx.mcmc(last_layer, data, num_warmup=200, num_samples=200, progress=False).draws["out.kernel"]
        draws = draws.reshape(-1, 4, 2)
    else:
        draws = phx.fit(last_layer, phx.guides.laplace(), data, progress=False).sample(seed=1, n=800)["out.kernel"]
    best = phx.maximize(last_layer, data).values["out.kernel"]
    differences, top = draws[..., 1] - draws[..., 0], best[..., 1] - best[..., 0]
    assert (np.abs(differences.mean(0) - top) < 0.5 * differences.std(0)).all()
