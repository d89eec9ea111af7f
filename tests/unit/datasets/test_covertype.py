"""Covertype's two files: read alike, made into a regression, and refused by name when something is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from phalanx.datasets import covertype

ROWS = 40
GZIP = b"\x1f\x8b"


def small_forest() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "numeric": random.integers(-100, 4000, (ROWS, 10)),
        "wilderness": random.integers(0, 4, ROWS),
        "soil": random.integers(0, 40, ROWS),
        "cover_type": np.arange(ROWS) % 7 + 1,
    }


def as_table(forest: dict[str, np.ndarray]) -> np.ndarray:
    areas, soils = np.eye(4, dtype=int)[forest["wilderness"]], np.eye(40, dtype=int)[forest["soil"]]
    return np.column_stack([forest["numeric"], areas, soils, forest["cover_type"]])


def write_table(folder: Path, table: np.ndarray, name: str = "covtype.data") -> Path:
    np.savetxt(folder / name, table, "%d", ",")
    return folder


def write_subset(folder: Path, forest: dict[str, np.ndarray]) -> Path:
    np.savez(folder / f"covtype_subset{ROWS}.npz", **forest)  # pyright: ignore[reportArgumentType]
    return folder


def test_a_table_and_an_archive_of_the_same_rows(tmp_path: Path) -> None:
    forest = small_forest()
    folders = [tmp_path / kind for kind in ("whole", "packed", "subset")]
    for folder in folders:
        folder.mkdir()
    write_table(folders[0], as_table(forest))
    write_table(folders[1], as_table(forest), "covtype.data.gz")
    write_subset(folders[2], forest)
    whole, packed, subset = (covertype(folder) for folder in folders)
    assert (folders[1] / "covtype.data.gz").read_bytes().startswith(GZIP)
    for other in (packed, subset):
        for mine, its in zip(whole[:4], other[:4], strict=True):
            np.testing.assert_array_equal(mine, its)
    assert (whole.name, whole.licence) == ("covertype-format", "as stated by whoever made the file")
    assert (subset.name, subset.licence) == ("covertype-subset", "CC BY 4.0")
    expected = f"Covertype (Blackard, 1998), a subset of 40 of the 581,012 rows, from {folders[2]}"
    assert subset.source == expected and subset.true_weights is None


def test_the_columns_are_those_of_the_rows_standardised_by_the_training_rows(tmp_path: Path) -> None:
    forest = small_forest()
    data = covertype(write_subset(tmp_path, forest), test_fraction=0.25, seed=5)
    assert data.train_x.shape == (30, 55) and data.test_x.shape == (10, 55) and len(data.columns) == 55
    assert data.train_x.dtype == data.test_x.dtype == np.float32 and data.train_y.dtype == np.int32
    order = np.random.RandomState(5).permutation(ROWS)
    raw = as_table(forest)[order]
    np.testing.assert_array_equal(np.concatenate([data.train_y, data.test_y]), raw[:, 54] == 2)
    varies = raw[:30, :54].std(0) > 0
    assert not varies.all(), "a soil that the training rows lack"
    mean, spread = raw[:30, :54].mean(0), raw[:30, :54].std(0)
    both = np.concatenate([data.train_x, data.test_x])
    np.testing.assert_allclose(
        both[:, :54][:, varies], ((raw[:, :54] - mean) / np.where(spread, spread, 1))[:, varies], atol=1e-5
    )
    assert (both[:, :54][:, ~varies] == 0).all() and (both[:, 54] == 1).all()
    assert data.columns[10:15] == (*(f"Wilderness_Area_{area}" for area in range(1, 5)), "Soil_Type_1")


def test_no_test_rows_and_another_shuffle(tmp_path: Path) -> None:
    write_subset(tmp_path, small_forest())
    everything = covertype(tmp_path, test_fraction=0)
    assert everything.train_x.shape == (ROWS, 55) and everything.test_y.shape == (0,)
    assert not np.array_equal(everything.train_x, covertype(tmp_path, test_fraction=0, seed=1).train_x)


def test_the_real_rows(data_folder: Path) -> None:
    if not (data_folder / "covertype").is_dir():
        pytest.skip("the folder of real data has no covertype")
    data = covertype(data_folder)
    assert data.name in ("covertype", "covertype-subset")
    assert 0.48 < data.train_y.mean() < 0.5, "lodgepole pine covers 48.8% of the cells"
    np.testing.assert_allclose(data.train_x[:, :10].mean(0), 0, atol=1e-4)


def test_an_empty_folder(tmp_path: Path) -> None:
    message = (
        f"covertype: no data in {tmp_path}: expected covtype.data.gz, covtype.data or covtype_subset*.npz. Get the "
        "file from https://archive.ics.uci.edu/dataset/31/covertype (covtype.data.gz), and pass its folder or set "
        "PHALANX_DATA to it."
    )
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        covertype(tmp_path)


def with_two_soils(table: np.ndarray) -> np.ndarray:
    table = table.copy()
    table[3, 14:54] = 1
    return table


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda table: table[:, :-1], "corrupt file, the column count check failed: expected 55, got 54"),
        (with_two_soils, "corrupt file, the soil type check failed: expected one indicator of 1 per row"),
        (lambda table: np.where(table == 7, 8, table), "the cover type check failed: expected 1 to 7, got 1 to 8"),
    ],
)
def test_a_wrong_table(tmp_path: Path, change, complaint: str) -> None:
    table = as_table(small_forest())
    table[:, :10] += 100  # only cover types are 7
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / 'covtype.data'}: ")) as raised:
        covertype(write_table(tmp_path, change(table)))
    assert complaint in str(raised.value)


@pytest.mark.parametrize("content", [b"2596,51,words\n", b"1,2\n1,2,3\n", b"1.5,2\n"])
def test_a_table_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "covtype.data").write_bytes(content)
    with pytest.raises(ValueError, match="corrupt file, reading rows of whole numbers failed"):
        covertype(tmp_path)


def test_an_archive_cut_at_its_end(tmp_path: Path) -> None:
    path = write_table(tmp_path, as_table(small_forest()), "covtype.data.gz") / "covtype.data.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="corrupt file, reading rows of whole numbers failed: Compressed file ended"):
        covertype(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("soil", None, "the content check failed: expected arrays numeric, wilderness, soil, cover_type"),
        ("soil", np.full(ROWS, 40), "the soil check failed: expected codes from 0 to 39"),
        ("wilderness", np.zeros(3, int), "the shape check failed: expected 40 rows, 10 numbers"),
        ("cover_type", np.zeros(ROWS, int), "the cover type check failed: expected 1 to 7, got 0 to 0"),
    ],
)
def test_a_wrong_subset(tmp_path: Path, name: str, value: np.ndarray | None, complaint: str) -> None:
    forest = {**small_forest(), name: value}
    write_subset(tmp_path, {key: array for key, array in forest.items() if array is not None})
    with pytest.raises(ValueError, match=re.escape(complaint)):
        covertype(tmp_path)


def test_a_subset_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "covtype_subset9.npz").write_bytes(b"words")
    with pytest.raises(ValueError, match="corrupt file, reading the archive failed"):
        covertype(tmp_path)


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        ({"test_fraction": 1.0}, "covertype: test_fraction must be at least 0 and below 1; got 1.0."),
        ({"test_fraction": float("nan")}, "covertype: test_fraction must be at least 0 and below 1; got nan."),
        ({"seed": -1}, "covertype: seed must be a whole number from 0 to 2**32 - 1; got -1."),
    ],
)
def test_choices_out_of_range(tmp_path: Path, choice: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        covertype(tmp_path, **choice)
