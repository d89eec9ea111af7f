from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from phalanx.demos import image_transformer as demo
from phalanx.demos.options import DemoOptions
from phalanx.networks.pixels import image_transformer, levels


@pytest.mark.slow
def test_bits_per_dimension_are_those_of_the_likelihood():
    network = image_transformer(3, 3, width=8, layers=1, heads=2)
    weights = network.init(jax.random.key(0))
    images = np.random.default_rng(0).integers(0, 256, size=(7, 9)).astype(np.uint8)
    each = levels(network.apply(weights, images)).log_prob(images)
    found = demo.bits_per_dimension(network, weights, images, batch=3)
    np.testing.assert_allclose(found, -float(np.mean(each)) / np.log(2), rtol=1e-5)


@pytest.mark.slow
def test_digits_are_learned_drawn_and_completed(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "WIDTH", 16)
    learned = demo.main(DemoOptions(epochs=1, data_shards=4, out=tmp_path))
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["data"] == "digits" and result["bits_per_dimension_test"] < 6
    assert learned.looks[-1].held_out_bits < learned.looks[0].held_out_bits
    for name in ("samples.png", "completions.png", "training.png", "losses.csv"):
        assert (tmp_path / name).stat().st_size > 0
