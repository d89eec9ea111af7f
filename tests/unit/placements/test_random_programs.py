"""Random programs on sharded rows: value and gradients are those of one device, whatever the number of rows."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.placements.comparison import compare_gradients
from tests.unit.placements.random_programs import arguments_of, program_of

from phalanx.placements import pad_rows

ROWS = {"data": 0}
SIZES = [{"data": 2}, {"data": 4}, {"data": 2, "model": 2}]
QUICK, ALL = 60, 300


def number_of_rows(seed: int, devices: int) -> int:
    return [1, 2, 3, 2 * devices + 1, 19, 203][seed % 6]


def pad_with_the_first(array, dim, devices):
    missing = -array.shape[dim] % devices
    return np.concatenate([array, np.repeat(np.take(array, [0], dim), missing, dim)], dim)


def case_of(seed):
    sizes = SIZES[seed // 6 % len(SIZES)]
    weights = {"model": 1} if "model" in sizes else {}
    return arguments_of(seed, number_of_rows(seed, sizes["data"])), [{}, weights, ROWS, ROWS, ROWS, ROWS], sizes


SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed >= QUICK else []) for seed in range(ALL)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_is_that_of_one_device(seed):
    arguments, divided, sizes = case_of(seed)
    pad = pad_with_the_first if seed % 2 else pad_rows  # any real row may stand in a padded one
    comparison = compare_gradients(program_of(seed), arguments, divided, sizes, parameters=3, pad=pad)
    assert comparison.error() < 5e-4
    assert "collective-permute" not in comparison.collectives
