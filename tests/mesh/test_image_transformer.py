"""An image transformer learned on a mesh: losses are those of one device, and each device holds its part of weights."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

import phalanx as phx

IMAGES = np.random.default_rng(0).integers(0, 256, size=(32, 16)).astype(np.uint8)


def learned(mesh, steps=3):
    network = phx.networks.image_transformer(4, 4, width=16, layers=1, heads=4, window=4)

    def model(pixels):
        outputs = phx.network("transformer", network)(pixels)
        phx.sample("pixels", phx.networks.levels(outputs).to_event(1), obs=pixels)

    return phx.fit(
        model, None, phx.batches({"pixels": IMAGES}, 8), optimizer=optax.adam(1e-2), num_steps=steps, mesh=mesh,
        progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone():
    return learned(phx.make_mesh(chain=1, devices=jax.devices()[:1]))


@pytest.mark.parametrize(
    "data, model", [pytest.param(*c, marks=pytest.mark.slow) for c in ((2, 4), (8, 1), (1, 4), (2, 2))]
)
def test_losses_are_those_of_one_device(alone, data, model, mesh_of):
    found = learned(mesh_of(1, data, model))
    np.testing.assert_allclose(found.losses.elbo, alone.losses.elbo, rtol=1e-4)
    assert found.free is not None
    hidden = found.free["transformer"]["blocks"][0]["hidden"]["kernel"]
    assert {shard.data.nbytes for shard in hidden.addressable_shards} == {hidden.nbytes // model}
