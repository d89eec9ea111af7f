"""Covertype: tree cover of 581,012 cells of forest in Colorado, as a binary problem of 55 columns.

"Covertype" (J. A. Blackard, 1998), in the UCI Machine Learning Repository, doi:10.24432/C50K5N, under CC BY 4.0.
"""

from __future__ import annotations

import os

import numpy as np

from phalanx.datasets.covertype_columns import COLUMNS, design_matrix
from phalanx.datasets.covertype_files import ORIGIN, read_forest
from phalanx.datasets.folder import find_folder
from phalanx.datasets.labelled_rows import LabelledRows, check_split

LODGEPOLE_PINE = 2
"""The most frequent cover type, just under half of the rows: the label is whether a cell is covered by it."""


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
    found = find_folder("covertype", folder, ORIGIN)
    forest = read_forest(found)
    rows = len(forest.cover_type)
    train = rows - int(test_fraction * rows)
    # RandomState, because NumPy has frozen its streams: a Generator may shuffle differently in another release.
    order = np.random.RandomState(seed).permutation(rows)
    x = design_matrix(forest.land, order, train)
    y = (forest.cover_type[order] == LODGEPOLE_PINE).astype(np.int32)
    original = forest.name != "covertype-format"
    return LabelledRows(
        x[:train], y[:train], x[train:], y[train:], COLUMNS, forest.name,
        source=f"Covertype (Blackard, 1998), {forest.words}, from {found}",
        licence="CC BY 4.0" if original else "as stated by whoever made the file",
    )  # fmt: skip
