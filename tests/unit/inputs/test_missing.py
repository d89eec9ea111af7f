"""Missing entries of every library in one form: NaN, or a number of the column beside a mask."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from phalanx.inputs.arguments import split_arguments
from phalanx.inputs.missing import mark_missing

NAN = np.nan


def model(x):
    return x


def marked(x):
    data, masks = mark_missing(model, {"x": x})
    arguments = split_arguments(model, data)
    return np.asarray(arguments.arrays[0]), masks.get("x"), arguments.labels[0]


REAL = {
    "masked": np.ma.masked_array([1.0, 9.0, 3.0], [False, True, False]),
    "a list": [1.0, None, 3],
    "objects": np.array([1.0, None, 3.0], object),
    "NA among objects": pd.Series([1.0, pd.NA, 3.0], dtype=object),
    "Float64": pd.Series([1.0, None, 3.0], dtype="Float64"),
    "float64": pd.Series([1.0, None, 3.0]),
    "Polars": pl.Series([1.0, None, 3.0]),
}


@pytest.mark.parametrize("x", REAL.values(), ids=REAL)
def test_real_numbers_are_nan(x):
    values, mask, _ = marked(x)
    np.testing.assert_array_equal(values, [1.0, NAN, 3.0])
    assert mask is None


WHOLE = {
    "masked": np.ma.masked_array([4, 999999, 3], [False, True, False]),
    "a list": [4, None, 3],
    "objects": np.array([4, None, 3], object),
    "Int64": pd.Series([4, None, 3], dtype="Int64"),
    "an index": pd.Index([4, None, 3], dtype="Int64"),
    "Polars": pl.Series([4, None, 3]),
    "flags": pd.Series([True, None, False], dtype="boolean"),
    "flags of Polars": pl.Series([True, None, False]),
    "categories": pd.Series(["b", None, "a"], dtype="category"),
    "a Categorical": pd.Categorical(["b", None, "a"]),
    "an Enum": pl.Series(["b", None, "a"], dtype=pl.Enum(["a", "b"])),
}


@pytest.mark.parametrize("x", WHOLE.values(), ids=WHOLE)
def test_others_keep_their_type_and_have_a_mask(x):
    values, mask, labels = marked(x)
    assert values.dtype.kind in "bi" and values[1] == values[0] != values[2]
    np.testing.assert_array_equal(mask, [False, True, False])
    assert labels == (("a", "b") if len(labels) else ())


TABLES = {
    "pandas": pd.DataFrame({"a": pd.Series([1, None], dtype="Int64"), "b": [1.0, 2.0]}),
    "Polars": pl.DataFrame({"a": [1, None], "b": [1.0, 2.0]}),
}


@pytest.mark.parametrize("x", TABLES.values(), ids=TABLES)
def test_tables_get_nan_and_keep_their_names(x):
    values, mask, labels = marked(x)
    np.testing.assert_array_equal(values, [[1.0, 1.0], [NAN, 2.0]])
    assert mask is None and labels == ("a", "b")


@pytest.mark.parametrize("x", [["a", None], np.array(["a", None], object), np.arange(3.0), 3, {"a": [1.0]}], ids=str)
def test_others_are_unchanged(x):
    data, masks = mark_missing(model, {"x": x})
    assert repr(data["x"]) == repr(x) and not masks


def test_only_missing_whole_numbers_are_refused():
    with pytest.raises(ValueError, match=r"data: x has no entry"):
        mark_missing(model, {"x": pd.Series([None, None], dtype="Int64")})
