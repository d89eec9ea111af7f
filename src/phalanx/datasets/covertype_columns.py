"""Columns of Covertype: ten numbers, and two categories as indicators; standardised, with an intercept."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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
