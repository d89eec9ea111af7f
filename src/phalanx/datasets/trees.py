"""Black cherry trees: girth, height and volume of timber, a table of 31 rows that comes with Phalanx."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame


def trees() -> DataFrame:
    """Return the girth (diameter in inches), height (feet) and volume (cubic feet) of 31 felled black cherry trees.

    Returns:
        A table with the columns girth, height and volume.

    Example:
        >>> import phalanx as phx
        >>> phx.datasets.trees().shape
        (31, 3)

    Source: Ryan, Joiner, Ryan (1976), The Minitab student handbook; facts of measurement, without a licence.
    """
    from pandas import read_csv  # as slow to import as all of Phalanx

    with files("phalanx.datasets").joinpath("trees.csv").open(encoding="utf-8") as file:
        return read_csv(file)
