"""MNIST: 70,000 handwritten digits of 28x28 pixels, read from the four idx files in a folder.

"The MNIST database of handwritten digits" (Y. LeCun, C. Cortes, C. Burges, 1998), under CC BY-SA 3.0. Any data set in
the same four files can be read too, such as Fashion-MNIST.

An idx file starts with two zero bytes, the type of its items (08 for unsigned bytes) and the number of its dimensions;
then come the sizes, four bytes each, most significant first; then the items.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zlib
from pathlib import Path

import numpy as np

from phalanx.datasets.classification import Classification
from phalanx.datasets.folder import check, find_folder
from phalanx.inputs.unpacking import most_unpacked

_ORIGIN = "https://yann.lecun.com/exdb/mnist or a mirror (four files, gzipped or not)"

_ORIGINAL_TRAIN_IMAGES = "6bbc9ace898e44ae57da46a324031adb"
"""MD5 of the unpacked file of training images, as first published."""

_DIMENSIONS = {"images": 3, "labels": 1}
_NUM_CLASSES = 10
_UNSIGNED_BYTES = b"\x00\x00\x08"


def mnist(folder: str | os.PathLike[str] | None = None) -> Classification:
    """Load MNIST from the four idx files in a folder.

    The files are `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and
    `t10k-labels-idx1-ubyte`, gzipped (`.gz`) or not; the spelling `train-images.idx3-ubyte` is accepted too.

    Args:
        folder: the folder with the files, or one that has them in a folder `mnist`; None means the folder that the
            environment variable PHALANX_DATA names.

    Returns:
        Images of shape `(n, 28, 28)`, uint8 from 0 to 255, and labels of shape `(n,)`, int32 from 0 to 9: 60,000 for
        training and 10,000 for testing. `name` is "mnist" when the training images are the original ones, byte for
        byte, and "mnist-format" when they are others. The images are read-only.

    Raises:
        FileNotFoundError: when there is no folder, or a file is missing from it.
        ValueError: when a file is corrupt; the message names the file and the check that failed.

    Example:
        >>> import phalanx as phx
        >>> data = phx.datasets.mnist("data/mnist")  # doctest: +SKIP
        >>> data.train_images.shape  # doctest: +SKIP
        (60000, 28, 28)

    Source: Y. LeCun, C. Cortes, C. Burges (1998), The MNIST database of handwritten digits.
    """
    files = find_folder("mnist", folder, _ORIGIN)
    # All files are located before the first is read, so that a missing file is reported at once.
    paths = {(half, kind): _find_file(files, half, kind) for half in ("train", "t10k") for kind in _DIMENSIONS}
    train_images, train_labels = _read_half(paths["train", "images"], paths["train", "labels"])
    test_images, test_labels = _read_half(paths["t10k", "images"], paths["t10k", "labels"])
    train_size, test_size = (" x ".join(map(str, images.shape[1:])) for images in (train_images, test_images))
    check(paths["t10k", "images"], "image size", test_size == train_size, f"{train_size} as in training", test_size)
    original = _file_md5(train_images) == _ORIGINAL_TRAIN_IMAGES
    return Classification(
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        name="mnist" if original else "mnist-format",
        source=f"The MNIST database of handwritten digits (LeCun, Cortes and Burges, 1998), from {files}"
        if original
        else f"four files in the format of MNIST, with other training images, from {files}",
        licence="CC BY-SA 3.0" if original else "as stated by whoever made the files",
    )


def _find_file(folder: Path, half: str, kind: str) -> Path:
    names = [f"{half}-{kind}{mark}idx{_DIMENSIONS[kind]}-ubyte{end}" for mark in "-." for end in (".gz", "")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"mnist: no {half} {kind} in {folder}: expected one of {', '.join(names)}. Get the files from {_ORIGIN}, and "
        "pass their folder or set PHALANX_DATA to it."
    )


def _read_half(images_path: Path, labels_path: Path) -> tuple[np.ndarray, np.ndarray]:
    images = read_idx(images_path, _DIMENSIONS["images"])
    labels = read_idx(labels_path, _DIMENSIONS["labels"])
    check(images_path, "image count", len(images) > 0, "at least one image", "none")
    check(labels_path, "label count", len(labels) == len(images), f"{len(images)}, one per image", len(labels))
    worst = int(labels.argmax())
    check(
        labels_path,
        "label range",
        int(labels[worst]) < _NUM_CLASSES,
        f"labels from 0 to {_NUM_CLASSES - 1}",
        f"{labels[worst]} for image {worst}",
    )
    return images, labels.astype(np.int32)


def _file_md5(images: np.ndarray) -> str:
    digest = hashlib.md5(b"\x00\x00\x08\x03" + np.array(images.shape, ">u4").tobytes(), usedforsecurity=False)
    digest.update(images.data)
    return digest.hexdigest()


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an idx file of unsigned bytes, gzipped when its name ends in `.gz`.

    Args:
        path: the file.
        dimensions: number of dimensions that its array must have.

    Returns:
        The array, uint8, with the sizes that the file states; read-only.

    Raises:
        ValueError: when the file is corrupt; the message names the file and the check that failed.
    """
    content = _unpack(path) if path.suffix == ".gz" else path.read_bytes()
    header = 4 + 4 * dimensions
    check(path, "header length", len(content) >= header, f"at least {header} bytes", f"{len(content)} bytes")
    check(path, "magic number", content[:3] == _UNSIGNED_BYTES, "bytes 00 00 08", f"bytes {content[:3].hex(' ')}")
    check(path, "dimension count", content[3] == dimensions, dimensions, content[3])
    sizes = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
    length = header + math.prod(sizes)
    stated = f"{length} bytes for sizes {' x '.join(map(str, sizes))}"
    check(path, "file length", len(content) == length, stated, f"{len(content)} bytes")
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)


def _unpack(path: Path) -> bytes:
    most = most_unpacked(path)
    try:
        with gzip.open(path) as stream:
            content = stream.read(most + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        reason = str(error).partition(" 0x")[0]
        raise ValueError(f"{path}: corrupt file, the gzip check failed: {reason}. Get the file again.") from error
    check(path, "unpacked size", len(content) <= most, f"at most {most} bytes", "more")
    return content
