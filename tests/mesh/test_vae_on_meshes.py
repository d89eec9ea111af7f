"""The variational autoencoder of the demo: rows over `data`, hidden units over `model`, the same on any mesh."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

import phalanx as phx
from phalanx.demos.vae import VAE

IMAGES = np.random.default_rng(0).integers(0, 256, (32, 36)).astype(np.uint8)
SMALL = VAE(pixels=36, latent=4, hidden=16)
STEPS = 12


def fitted(mesh, **options):
    return phx.fit(
        SMALL.model, SMALL.encoder, phx.batches({"x": IMAGES}, 8), num_particles=1, num_steps=STEPS, mesh=mesh,
        objective=phx.guides.elbo(path=False), optimizer=optax.adam(3e-3), progress=False, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone():
    return fitted(phx.make_mesh(chain=1, data=1, model=1), training=phx.training(every=STEPS))


@pytest.mark.slow
@pytest.mark.parametrize("data, model", [(2, 4), (2, 1)])
def test_the_loss_is_the_same_and_each_device_has_its_part(alone, data, model):
    spread = fitted(phx.make_mesh(chain=1, data=data, model=model), training=phx.training(every=STEPS))
    np.testing.assert_allclose(spread.losses.elbo, alone.losses.elbo, rtol=2e-4)
    assert np.abs(np.diff(alone.losses.elbo)).max() > 100.0  # they are not the same for want of learning
    sharding = spread.arrays[0].sharding
    assert isinstance(sharding, jax.sharding.NamedSharding) and sharding.spec == jax.sharding.PartitionSpec("data")
    large = [leaf for leaf in jax.tree.leaves(spread.free) if leaf.ndim == 2 and SMALL.hidden in leaf.shape]
    assert len(large) >= 12  # two networks, four layers of flows
    for leaf in large:
        assert {shard.data.nbytes * model for shard in leaf.addressable_shards} == {leaf.nbytes}


def test_replicated_arrays_are_small():
    """Of the sizes of the demo, less than a hundredth of the weights has a copy on every device."""
    vae = VAE(784)
    specs = {name: vae.network_of(name).specs for name in ("encoder", "decoder")}
    shapes = {name: jax.eval_shape(vae.network_of(name).init, jax.random.key(0)) for name in specs}
    whole = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    pairs = zip(jax.tree.leaves(shapes), jax.tree.leaves(specs), strict=True)
    copied = sum(leaf.size for leaf, spec in pairs if "model" not in spec)
    assert whole > 1e6 and copied < whole / 100


@pytest.mark.slow
def test_draws_from_the_three_programs_have_the_same_latent():
    prior = phx.trace(phx.seed(lambda: SMALL.prior(3), 0))()
    encoder = phx.trace(phx.seed(SMALL.encoder, 0))(IMAGES[:3])
    decoder = phx.trace(phx.seed(SMALL.decoder, 0))(prior["z"].value)
    assert prior["z"].shape == encoder["z"].shape == (3, 4)
    assert decoder["x"].shape == (3, 36)
    x = np.asarray(decoder["x"].value)
    assert x.min() >= 0 and x.max() <= 255


@pytest.mark.slow
def test_black_and_white():
    vae = VAE(pixels=36, latent=4, hidden=16, binary=True)
    binary = (IMAGES > 128).astype(np.uint8)
    fit = phx.fit(
        vae.model, vae.encoder, phx.batches({"x": binary}, 8), num_particles=1, num_steps=2, until=False,
        objective=phx.guides.elbo(path=False), optimizer=1e-3, progress=False,
    )  # fmt: skip
    assert -60.0 * 32 < fit.losses.elbo[0] < -20.0 * 32  # 36 pixels of a bit or so
    bounds = fit.row_bounds({"x": binary[:5]}, 60)
    assert (bounds.importance_weighted > bounds.elbo).all()
