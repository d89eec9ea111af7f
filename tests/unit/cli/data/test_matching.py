"""What a model asks for, against what the data have; and which rows are spread over devices."""

from __future__ import annotations

import re

import numpy as np
import pytest

from phalanx.cli.data.cells import levels
from phalanx.cli.data.matching import match_data, shard_rows


def model(x, y, scale=1.0):
    raise AssertionError("matching runs nothing")


def test_columns_not_asked_for_are_left_out() -> None:
    matched = match_data(model, {"id": [1], "y": 2, "x": 3, "name": "a"})
    assert matched.arguments == {"x": 3, "y": 2} and matched.left_out == ["id", "name"]
    assert match_data(model, {"x": 1, "y": 2, "scale": 3}).arguments == {"x": 1, "y": 2, "scale": 3}


def test_a_model_that_takes_everything_or_nothing() -> None:
    assert match_data(lambda **data: None, {"x": 1, "y": 2}).left_out == []
    assert match_data(lambda: None, {"x": 1}) == ({}, ["x"])


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"x": 1, "z": 2}, "model(x, y, scale=1.0) asks for y, and the data have only x, z."),
        ({}, "model(x, y, scale=1.0) asks for x, y, and there are no data: name a file of them with --data."),
    ],
)
def test_missing_arguments_are_named(data: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        match_data(model, data)


def test_words_are_numbered_in_alphabetical_order() -> None:
    words = np.array(["Cass", "Aitkin", "Cass"], dtype=object)
    column = match_data(model, {"x": words, "y": 1}).arguments["x"]
    assert column.cat.codes.tolist() == [1, 0, 1] and levels(column) == ["Aitkin", "Cass"]
    assert levels(np.ones(3)) == []


@pytest.mark.parametrize(
    ("cells", "complaint"),
    [
        (["7", "1,234"], "row 2, column x: '1,234' is not a number, but '7' in row 1 is one. Write numbers as 1234.5;"),
        (["?", "7.5", "?"], "row 1, column x: '?' is not a number, but '7.5' in row 2 is one."),
        (["Cass", np.nan], "row 2, column x: the cell is empty (or NA, or None), and categories have no NaN."),
        ([True, np.nan], "row 2, column x: the cell is empty (or NA, or None), and flags have no NaN."),
    ],
)
def test_a_cell_that_is_no_number_is_named(cells: list, complaint: str) -> None:
    column = np.array(cells, dtype=object)
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
        match_data(model, {"x": column, "y": 1})
    assert match_data(model, {"x": 1, "y": 1, "z": column}).left_out == ["z"], "nobody asks for it"


def test_the_longest_arrays_have_the_rows(mesh_of) -> None:
    data = {"x": np.ones((6, 2)), "y": np.ones(6), "prior": np.ones(2), "size": 6}
    arguments, spread = shard_rows(data, mesh_of(1, 2))
    assert spread == ["x", "y"] and len(arguments["x"].sharding.device_set) == 2
    assert arguments["prior"] is data["prior"] and arguments["size"] == 6


def test_nothing_has_rows(mesh_of) -> None:
    with pytest.raises(ValueError, match="^--data-shards: the data contain no array whose rows"):
        shard_rows({"size": 6}, mesh_of(1, 2))
