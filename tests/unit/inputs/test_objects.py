"""Data of Python objects: the message names the argument or column, the first row without a number, and its content."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import phalanx as phx


class Thing:
    def __repr__(self):
        return "<Thing>"


def rows_of(*lengths):
    rows = np.empty(len(lengths), object)
    rows[:] = [np.ones(length) for length in lengths]
    return rows


def objects(*items):
    return np.array(items, dtype=object)


def model(x):
    phx.sample("s", dist.Normal(0.0, 1.0))


OBJECTS = {
    "None": (objects(1.0, None, 3.0), "[1] is None; a missing number is float('nan'), or leave the row out."),
    "NA": (objects(1.0, 2.0, pd.NA), "[2] is <NA>; a missing number is float('nan')"),
    "NaT": (objects(pd.NaT, 2.0), "[0] is NaT; a missing number is float('nan')"),
    "word": (objects(1.0, "abc", 3.0), "[1] is 'abc'; to number words use pandas.Categorical(words), whose levels"),
    "number in text": (objects(1.0, "2.5"), "; of numbers in text, use pandas.to_numeric."),
    "thing": (objects(1.0, 2, Thing()), "[2] is <Thing>, a Thing."),
    "dict": (objects(1.0, {"a": 1}), "[1] is {'a': 1}, a dict."),
    "decimal": (objects(Decimal("1.5"), 2.0), "[0] is Decimal('1.5'), a Decimal; use .astype(float)."),
    "fraction": (objects(1, Fraction(1, 3)), "[1] is Fraction(1, 3), a Fraction; use .astype(float)."),
    "complex": (objects(1.0, 2j), "[1] is 2j, a complex."),
    "date": (objects(1.0, date(2020, 1, 2)), "[1] is datetime.date(2020, 1, 2), a date; give the time since one of"),
    "time": (objects(1.0, datetime(2020, 1, 2)), "[1] is datetime.datetime(2020, 1, 2, 0, 0), a datetime; give"),
    "rows": (rows_of(2, 3), "[0] is array([1., 1.]), a ndarray; pad rows of different lengths to one length"),
    "array": (objects(1.0, jnp.float32(2.0)), "[1] is Array(2., dtype=float32), a ArrayImpl; use .astype(float)."),
    "numbers": (objects(1, 2.0, True), " is an array of object, which cannot be computed with; encode it as "
                "numbers. Its items are numbers: use .astype(float)."),
    "large": (objects(1, 2**70), "[1] = 1180591620717411303424 does not fit int32. Scale it, or give floats."),
}  # fmt: skip


def as_argument(values):
    phx.Target(model, {"x": values})


def as_column(values):
    phx.Target(model, cast(Any, pd.DataFrame({"x": pd.Series(values, index=range(10, 10 + len(values)))})))


def in_a_tree(values):
    phx.Target(model, {"x": {"part": values}})


def in_a_table(values):
    phx.Target(model, {"x": pd.DataFrame({"first": np.ones(len(values)), "second": values})})


PLACES = {"x": as_argument, "x ": as_column, "x['part']": in_a_tree, "x['second']": in_a_table}


@pytest.mark.parametrize("values, message", OBJECTS.values(), ids=OBJECTS)
@pytest.mark.parametrize("place, give", PLACES.items(), ids=[give.__name__ for give in PLACES.values()])
def test_objects_are_refused_with_their_place(values, message, place, give):
    with pytest.raises((TypeError, ValueError)) as raised:
        give(values)
    assert f"data: {place.strip()}" in str(raised.value) and message in str(raised.value)


@pytest.mark.parametrize("values, message", OBJECTS.values(), ids=OBJECTS)
def test_sharded_objects_are_refused_with_their_place(values, message, mesh_of):
    with pytest.raises((TypeError, ValueError)) as raised:
        phx.shard({"x": values}, mesh_of(1, 2))
    assert "shard: x" in str(raised.value) and message in str(raised.value)


def test_a_matrix_names_row_and_column():
    with pytest.raises(TypeError, match=r"data: x\[1, 1\] is None; a missing number"):
        as_argument(np.array([[1.0, 2.0], [3.0, None]], object))


def line_through(x, y):
    slope = phx.sample("slope", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(slope * x, 1.0), obs=y)


WORDS = "Give words as a pandas.Categorical, whose levels the model has as numbers 0, 1, ..., or as np.unique(x, "
DAYS = "Give the time since one of them, in days."


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (["a", "b"], f"'slope * x' cannot be computed: the argument 'x' is a list of objects such as 'a', and not of "
                     f"numbers. {WORDS}return_inverse=True)[1]."),
        (("a", "b"), "the argument 'x' is a tuple of objects such as 'a', and not of numbers."),
        ([date(2020, 1, 2)] * 2, f"is a list of objects such as datetime.date(2020, 1, 2), and not of numbers. {DAYS}"),
        ([datetime(2020, 1, 2)] * 2, DAYS),
        (date(2020, 1, 2), f"the argument 'x' is datetime.date(2020, 1, 2), and not a number. {DAYS}"),
    ],
)  # fmt: skip
def test_lists_of_words_and_dates_are_refused_where_the_model_computes_with_them(x, words):
    with pytest.raises(ValueError) as error:
        phx.Target(line_through, {"x": x, "y": [1.0, 2.0]})
    assert words in str(error.value)


def test_decimals_are_numbers():
    given = [phx.Target(line_through, {"x": x, "y": [1.0, 2.0]}) for x in ([Decimal("1.5"), 2], [1.5, 2.0])]
    assert given[0].log_density({"slope": 1.0}) == given[1].log_density({"slope": 1.0})
    phx.Target(line_through, {"x": Decimal("1.5"), "y": [1.0, 2.0]})


def test_lists_of_words_that_the_model_does_not_compute_with_are_part_of_it():
    def by_name(x, columns):
        slope = phx.sample("slope", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(slope * x[columns[0]], 1.0), obs=jnp.zeros(2))

    phx.Target(by_name, {"x": {"a": np.ones(2)}, "columns": ["a"]})
