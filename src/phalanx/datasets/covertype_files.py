"""Reader of the files of Covertype: the whole, as UCI publishes it, or a subset of its rows in a NumPy archive."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from phalanx.datasets.covertype_columns import NUMBERS, SOILS, WILDERNESSES, Land
from phalanx.datasets.idx import check

WHOLE = ("covtype.data.gz", "covtype.data")
SUBSET = "covtype_subset*.npz"
ROWS = 581_012
ORIGIN = f"https://archive.ics.uci.edu/dataset/31/covertype ({WHOLE[0]})"

_PER_CLASS = (211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510)
"""Rows of each cover type in the whole file, which identify it, packed or not."""

_CLASSES = len(_PER_CLASS)
_FIELDS = len(NUMBERS) + WILDERNESSES + SOILS + 1


class Forest(NamedTuple):
    """Rows of a file: the land, its cover type from 1 to 7, the name of the data and a description."""

    land: Land
    cover_type: np.ndarray
    name: str
    words: str


def read_forest(folder: Path) -> Forest:
    """Read the whole file if the folder has it, else the subset.

    Args:
        folder: the folder with the file.

    Returns:
        The rows. Their name is "covertype" when cover types are as frequent as in the original, "covertype-subset" when
        they come from the archive, and "covertype-format" otherwise.

    Raises:
        FileNotFoundError: when the folder has neither.
        ValueError: when a file is corrupt; the message names the file and the check that failed.
    """
    for name in WHOLE:
        if (folder / name).is_file():
            return _read_whole(folder / name)
    if subsets := sorted(folder.glob(SUBSET)):
        return _read_subset(subsets[0])
    raise FileNotFoundError(
        f"covertype: no data in {folder}: expected {', '.join(WHOLE)} or {SUBSET}. Get the file from {ORIGIN}, and "
        f"pass its folder or set PHALANX_DATA to it."
    )


def _read_whole(path: Path) -> Forest:
    try:
        table = np.loadtxt(path, np.int32, delimiter=",", ndmin=2)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path}: corrupt file, reading rows of whole numbers failed: {error}.") from error
    check(path, "column count", table.shape[1] == _FIELDS, _FIELDS, table.shape[1])
    numbers, areas, soils = np.split(table[:, :-1], [len(NUMBERS), len(NUMBERS) + WILDERNESSES], axis=1)
    for what, indicators in (("wilderness area", areas), ("soil type", soils)):
        single = bool(np.isin(indicators, (0, 1)).all() and (indicators.sum(1) == 1).all())
        check(path, what, single, "one indicator of 1 per row", "rows with none or several")
    land = Land(numbers, areas.argmax(1), soils.argmax(1))
    cover_type = _checked_classes(path, table[:, -1])
    counts = tuple(np.bincount(cover_type, minlength=_CLASSES + 1)[1:].tolist())
    if counts == _PER_CLASS:
        return Forest(land, cover_type, "covertype", f"all {ROWS:,} rows")
    return Forest(land, cover_type, "covertype-format", f"{len(cover_type):,} other rows in its format")


def _read_subset(path: Path) -> Forest:
    wanted = ("numeric", "wilderness", "soil", "cover_type")
    try:
        with np.load(path, allow_pickle=False) as archive:
            held = {name: archive[name] for name in wanted if name in archive.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: corrupt file, reading the archive failed: {error}. Get the file again.") from error
    check(path, "content", len(held) == len(wanted), f"arrays {', '.join(wanted)}", ", ".join(held) or "none of them")
    numbers, wilderness, soil = (held[name] for name in wanted[:3])
    cover_type = _checked_classes(path, held["cover_type"])
    rows = len(cover_type)
    shapes = [numbers.shape, wilderness.shape, soil.shape]
    check(path, "shape", shapes == [(rows, len(NUMBERS)), (rows,), (rows,)], f"{rows} rows, 10 numbers", shapes)
    for what, codes, most in (("wilderness", wilderness, WILDERNESSES), ("soil", soil, SOILS)):
        check(path, what, bool(((codes >= 0) & (codes < most)).all()), f"codes from 0 to {most - 1}", "others")
    land = Land(numbers, wilderness.astype(np.intp), soil.astype(np.intp))
    return Forest(land, cover_type, "covertype-subset", f"a subset of {rows:,} of the {ROWS:,} rows")


def _checked_classes(path: Path, classes: np.ndarray) -> np.ndarray:
    check(path, "row count", classes.ndim == 1 and len(classes) > 0, "at least one row", "none")
    fits = bool(classes.min() >= 1 and classes.max() <= _CLASSES)
    check(path, "cover type", fits, f"1 to {_CLASSES}", f"{classes.min()} to {classes.max()}")
    return classes.astype(np.int64)
