"""MNIST's four files: read in each spelling, and refused by name, with the check that failed, when corrupt."""

from __future__ import annotations

import gzip
import math
import re
from pathlib import Path

import numpy as np
import pytest

from phalanx.datasets import mnist
from phalanx.datasets.mnist import read_idx

KINDS = {"images": 3, "labels": 1}


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def small_half(count: int) -> dict[str, np.ndarray]:
    return {"images": np.arange(count * 6).reshape(count, 2, 3), "labels": np.arange(count) % 10}


HALVES = {"train": small_half(12), "t10k": small_half(5)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The four files, unpacked and sound, with 12 and 5 images of 2 x 3 pixels."""
    for half, arrays in HALVES.items():
        for kind, array in arrays.items():
            (tmp_path / f"{half}-{kind}-idx{KINDS[kind]}-ubyte").write_bytes(idx(array))
    return tmp_path


def refusal(path: Path, what: str, expected: str, got: str) -> str:
    message = f"{path}: corrupt file, the {what} check failed: expected {expected}, got {got}. Get the file again."
    return f"^{re.escape(message)}$"


@pytest.mark.parametrize("mark", ["-", "."])
@pytest.mark.parametrize("packed", [False, True])
def test_each_spelling_of_the_names(folder: Path, mark: str, packed: bool) -> None:
    for path in list(folder.iterdir()):
        content = path.read_bytes()
        path.unlink()
        name = path.name.replace("-idx", f"{mark}idx")
        (folder / f"{name}{'.gz' if packed else ''}").write_bytes(gzip.compress(content) if packed else content)
    data = mnist(folder)
    for images, labels, half in (
        (data.train_images, data.train_labels, HALVES["train"]),
        (data.test_images, data.test_labels, HALVES["t10k"]),
    ):
        assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
        np.testing.assert_array_equal(images, half["images"])
        np.testing.assert_array_equal(labels, half["labels"])
    assert data.name == "mnist-format"
    assert data.source == f"four files in the format of MNIST, with other training images, from {folder}"
    assert data.licence == "as stated by whoever made the files"


def test_a_missing_file(folder: Path) -> None:
    (folder / "t10k-labels-idx1-ubyte").unlink()
    message = (
        f"mnist: no t10k labels in {folder}: expected one of t10k-labels-idx1-ubyte.gz, t10k-labels-idx1-ubyte, "
        "t10k-labels.idx1-ubyte.gz, t10k-labels.idx1-ubyte. Get the files from https://yann.lecun.com/exdb/mnist or a "
        "mirror (four files, gzipped or not), and pass their folder or set PHALANX_DATA to it."
    )
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        mnist(folder)


CORRUPTIONS = {
    "empty": (lambda content: b"", "header length", "at least 16 bytes", "0 bytes"),
    "cut in its header": (lambda content: content[:9], "header length", "at least 16 bytes", "9 bytes"),
    "of another format": (lambda content: b"\x89PNG" + content[4:], "magic number", "bytes 00 00 08", "bytes 89 50 4e"),
    "of another type": (
        lambda content: b"\x00\x00\x0d" + content[3:],
        "magic number",
        "bytes 00 00 08",
        "bytes 00 00 0d",
    ),
    "cut at its end": (lambda content: content[:-1], "file length", "88 bytes for sizes 12 x 2 x 3", "87 bytes"),
    "with more at its end": (
        lambda content: content + b"\0\0",
        "file length",
        "88 bytes for sizes 12 x 2 x 3",
        "90 bytes",
    ),
    "without images": (lambda content: idx(np.zeros((0, 2, 3))), "image count", "at least one image", "none"),
    # The fourth size would be read from the first items; labels in place of images is the mistake people make.
    "of labels": (lambda content: idx(np.arange(12)), "dimension count", "3", "1"),
}


@pytest.mark.parametrize("case", CORRUPTIONS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_corrupt_file_of_images(folder: Path, case: str, packed: bool) -> None:
    corrupt, what, expected, got = CORRUPTIONS[case]
    path = folder / "train-images-idx3-ubyte"
    content = corrupt(path.read_bytes())
    if packed:
        path.unlink()
        path = path.with_suffix(".gz")
        content = gzip.compress(content)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=refusal(path, what, expected, got)):
        mnist(folder)


def test_a_size_too_large_for_any_file(folder: Path) -> None:
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(bytes([0, 0, 8, 3]) + b"\xff" * 12)
    side = 2**32 - 1
    stated = f"{16 + math.prod([side] * 3)} bytes for sizes {side} x {side} x {side}"
    with pytest.raises(ValueError, match=refusal(path, "file length", stated, "16 bytes")):
        mnist(folder)


def test_labels_and_images_that_differ_in_number(folder: Path) -> None:
    path = folder / "train-labels-idx1-ubyte"
    path.write_bytes(idx(np.zeros(11)))
    with pytest.raises(ValueError, match=refusal(path, "label count", "12, one per image", "11")):
        mnist(folder)


def test_a_label_out_of_range(folder: Path) -> None:
    path = folder / "t10k-labels-idx1-ubyte"
    path.write_bytes(idx(np.array([0, 9, 3, 10, 1])))
    with pytest.raises(ValueError, match=refusal(path, "label range", "labels from 0 to 9", "10 for image 3")):
        mnist(folder)


def test_test_images_of_another_size(folder: Path) -> None:
    path = folder / "t10k-images-idx3-ubyte"
    path.write_bytes(idx(np.zeros((5, 3, 2))))
    with pytest.raises(ValueError, match=refusal(path, "image size", "2 x 3 as in training", "3 x 2")):
        mnist(folder)


def flip_checksum(packed: bytes) -> bytes:
    return packed[:-8] + bytes([packed[-8] ^ 1]) + packed[-7:]


@pytest.mark.parametrize(
    ("corrupt", "reason"),
    [
        (lambda packed: packed[:-20], "Compressed file ended before the end-of-stream marker was reached"),
        (lambda packed: packed[:-4], "Compressed file ended before the end-of-stream marker was reached"),
        (flip_checksum, "CRC check failed"),
        (lambda packed: b"<html>" + packed, "Not a gzipped file (b'<h')"),
    ],
    ids=["truncated", "without its length", "wrong checksum", "not gzip"],
)
def test_a_corrupt_gzip(folder: Path, corrupt, reason: str) -> None:
    plain = folder / "train-images-idx3-ubyte"
    path = plain.with_suffix(".gz")
    path.write_bytes(corrupt(gzip.compress(plain.read_bytes())))
    message = f"{path}: corrupt file, the gzip check failed: {reason}. Get the file again."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        mnist(folder)


def test_the_original(data_folder: Path) -> None:
    if not (data_folder / "mnist").is_dir():
        pytest.skip(f"no folder mnist in PHALANX_DATA ({data_folder})")
    data = mnist(data_folder)
    assert data.train_images.shape == (60_000, 28, 28)
    assert data.test_images.shape == (10_000, 28, 28)
    assert data.train_images.dtype == data.test_images.dtype == np.uint8
    # The numbers of images per digit, as counted by many before us.
    assert np.bincount(data.train_labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.test_labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.name == "mnist"
    assert data.licence == "CC BY-SA 3.0"


@pytest.mark.parametrize("sizes", [(2**32 - 1, 2**32 - 1, 2**32 - 1), (2**31, 28, 28), (0, 0, 0)])
def test_a_header_that_declares_huge_sizes(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    path = tmp_path / "images"
    path.write_bytes(b"\x00\x00\x08\x03" + b"".join(size.to_bytes(4, "big") for size in sizes) + bytes(100))
    with pytest.raises(ValueError, match=r"images: corrupt file, the file length check failed: expected \d+ bytes"):
        read_idx(path, 3)


def test_a_file_that_unpacks_to_a_thousand_times_its_size(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(b"\x00\x00\x08\x01" + (2**27).to_bytes(4, "big") + bytes(2**27)))
    with pytest.raises(
        ValueError, match=r"images\.gz: .* the unpacked size check failed: expected at most 67108864 bytes"
    ):
        read_idx(path, 1)
