"""Covertype: tree cover of 581,012 cells of forest in Colorado, as a binary problem of 55 columns.

"Covertype" (J. A. Blackard, 1998), in the UCI Machine Learning Repository, doi:10.24432/C50K5N, under CC BY 4.0. Ten
columns are numbers, 44 are indicators of two categories; all are standardised, and followed by an intercept.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from phalanx.datasets.folder import check, find_folder, read_archive

LODGEPOLE_PINE = 2
"""The most frequent cover type, just under half of the rows: the label is whether a cell is covered by it."""

NUMBERS = (
    "Elevation",
    "Aspect",
    "Slope",
    "Horizontal_Distance_To_Hydrology",
    "Vertical_Distance_To_Hydrology",
    "Horizontal_Distance_To_Roadways",
    "Hillshade_9am",
    "Hillshade_Noon",
    "Hillshade_3pm",
    "Horizontal_Distance_To_Fire_Points",
)
WILDERNESSES, SOILS = 4, 40
COLUMNS = (
    *NUMBERS,
    *(f"Wilderness_Area_{area}" for area in range(1, WILDERNESSES + 1)),
    *(f"Soil_Type_{soil}" for soil in range(1, SOILS + 1)),
    "Intercept",
)

WHOLE = ("covtype.data.gz", "covtype.data")
SUBSET = "covtype_subset*.npz"
ROWS = 581_012
ORIGIN = f"https://archive.ics.uci.edu/dataset/31/covertype ({WHOLE[0]})"

_PER_CLASS = (211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510)
"""Rows of each cover type in the whole file, which identify it, packed or not."""

_CLASSES = len(_PER_CLASS)
_FIELDS = len(NUMBERS) + WILDERNESSES + SOILS + 1


class LabelledRows(NamedTuple):
    """Rows of columns with a label of 0 or 1, split into train and test, with their source and licence.

    Attributes:
        train_x: shape `(train, columns)`, float32.
        train_y: labels 0 and 1, int32, shape `(train,)`.
        test_x: shape `(test, columns)`, float32.
        test_y: labels 0 and 1, int32, shape `(test,)`.
        columns: the names of the columns.
        name: name of the data in a report.
        source: who made the data and where this copy came from.
        licence: the licence of the data.
        true_weights: shape `(columns,)`, the weights that generated labels were drawn with; None for real data.

    Example:
        >>> import phalanx as phx
        >>> data = phx.datasets.generate_covertype(1000)
        >>> data.train_x.shape, data.test_y.shape
        ((900, 55), (100,))
    """

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    columns: tuple[str, ...]
    name: str
    source: str
    licence: str
    true_weights: np.ndarray | None = None


def covertype(
    folder: str | os.PathLike[str] | None = None, *, test_fraction: float = 0.1, seed: int = 0
) -> LabelledRows:
    """Load Covertype as a binary problem, on which samplers are often timed: lodgepole pine, or something else.

    Columns are ten numbers, four indicators of a wilderness area and forty of a soil type, all standardised by the
    training rows, and an intercept. Rows are shuffled by `seed`, and the last are for testing. The file is
    `covtype.data.gz` from UCI (or unpacked) if the folder has it, else a subset in `covtype_subset*.npz`.

    Args:
        folder: the folder with the file, or one that has it in a folder `covertype`; None means the folder that the
            environment variable PHALANX_DATA names.
        test_fraction: the fraction of rows kept for testing, rounded down; from 0, which keeps none, to below 1.
        seed: seed of the shuffle; 0 to 2**32 - 1.

    Returns:
        Columns of shape `(n, 55)`, float32, and labels of shape `(n,)`, int32. `name` is "covertype" for the whole
        file, "covertype-subset", or "covertype-format" for other rows in the format of the whole.

    Raises:
        FileNotFoundError: when there is no folder, or the folder has neither file.
        ValueError: when the file is corrupt, or `test_fraction` or `seed` is out of range.

    Example:
        >>> import phalanx as phx
        >>> data = phx.datasets.covertype("data/covertype")  # doctest: +SKIP
        >>> data.train_x.shape  # doctest: +SKIP
        (522911, 55)

    Source: J. A. Blackard and D. J. Dean (1999), Comparative accuracies of artificial neural networks and discriminant
    analysis in predicting forest cover types from cartographic variables; as a problem for samplers, D. Tran et al.
    (2018), Simple, distributed, and accelerated probabilistic programming.
    """
    check_split("covertype", test_fraction, seed)
    files = find_folder("covertype", folder, ORIGIN)
    forest = read_forest(files)
    rows = len(forest.cover_type)
    train = rows - int(test_fraction * rows)
    # RandomState, because NumPy has frozen its streams: a Generator may shuffle differently in another release.
    order = np.random.RandomState(seed).permutation(rows)
    x = design_matrix(forest.land, order, train)
    y = (forest.cover_type[order] == LODGEPOLE_PINE).astype(np.int32)
    original = forest.name != "covertype-format"
    return LabelledRows(
        x[:train],
        y[:train],
        x[train:],
        y[train:],
        COLUMNS,
        forest.name,
        source=f"Covertype (Blackard, 1998), {forest.text}, from {files}",
        licence="CC BY 4.0" if original else "as stated by whoever made the file",
    )


def check_split(who: str, test_fraction: float, seed: int) -> None:
    """Raise unless the fraction of test rows and the seed are in range; messages name the function `who`."""
    if not 0 <= test_fraction < 1:
        raise ValueError(f"{who}: test_fraction must be at least 0 and below 1; got {test_fraction!r}.")
    if not (isinstance(seed, int) and 0 <= seed < 2**32):
        raise ValueError(f"{who}: seed must be a whole number from 0 to 2**32 - 1; got {seed!r}.")


class Land(NamedTuple):
    """Measurements of cells of land, 30 m x 30 m each.

    Attributes:
        numbers: shape `(rows, 10)`, in the order of `NUMBERS`.
        wilderness: number of the wilderness area from 0 to 3, shape `(rows,)`.
        soil: number of the soil type from 0 to 39, shape `(rows,)`.
    """

    numbers: np.ndarray
    wilderness: np.ndarray
    soil: np.ndarray


def design_matrix(land: Land, order: np.ndarray, num_train: int) -> np.ndarray:
    r"""Return the columns of a regression: standardised, then a column of ones.

    A column $x$ becomes $(x - \bar x) / s$ with mean and standard deviation of the training rows, so that training does
    not depend on the test rows. An indicator that is the same in all training rows becomes zeros.

    Args:
        land: the rows.
        order: numbers of the rows in the wanted order, shape `(rows,)`.
        num_train: number of rows for training, the first ones of `order`.

    Returns:
        Shape `(rows, 55)`, float32.
    """
    columns = [
        *land.numbers.T,
        *(land.wilderness == area for area in range(WILDERNESSES)),
        *(land.soil == soil for soil in range(SOILS)),
    ]
    design = np.ones((len(order), len(COLUMNS)), np.float32)
    for position, column in enumerate(columns):  # one at a time: in float64 all would take a quarter of a GB
        values = column[order].astype(np.float64)
        train = values[:num_train]
        spread = train.std()
        design[:, position] = (values - train.mean()) / spread if spread > 0 else 0.0
    return design


class Forest(NamedTuple):
    """Rows of a file: the land, its cover type from 1 to 7, the name of the data and a description."""

    land: Land
    cover_type: np.ndarray
    name: str
    text: str


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
    numbers, wilderness, soil, cover_type = read_archive(path, ("numeric", "wilderness", "soil", "cover_type"))
    cover_type = _checked_classes(path, cover_type)
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
