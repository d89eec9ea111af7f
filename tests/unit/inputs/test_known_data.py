"""New data in the numbering of a run: levels and columns are found by name, arguments fill in, the rest is refused."""

from __future__ import annotations

import re

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx as phx
from phalanx.inputs.arguments import Arguments, split_arguments
from phalanx.inputs.dataframe_input import in_form_of
from phalanx.inputs.known_data import KnownData, labels_of, names_of, scalars_of

MESH = phx.make_mesh(chain=1, data=2, devices=jax.devices()[:2])


def model(site, x, y=None, size=3, scale=1.0):
    raise AssertionError("splitting runs nothing")


def whole(arguments: Arguments) -> dict[str, np.ndarray]:
    """The arrays by name, without padded rows."""
    pairs = zip(arguments.names, arguments.arrays, arguments.shardings, strict=True)
    return {name: np.asarray(array[: s.rows] if s.axes else array) for name, array, s in pairs}


LEVELS = ["east", "north", "south"]
SITE = pd.Series(pd.Categorical(["north", "south", "east", "north"]))
TABLE = pd.DataFrame({"age": [1.0, 2.0, 3.0, 4.0], "income": [5.0, 6.0, 7.0, 8.0]})
FIRST = split_arguments(model, {"site": SITE, "x": TABLE, "y": np.zeros(4), "size": 3, "scale": 2.5})
KNOWN = KnownData.of(FIRST)


def again(**data):
    return whole(KNOWN.split(model, {"site": SITE, "x": TABLE, **data}))


words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=4)
KINDS = {
    "pandas": lambda rows, levels: pd.Series(pd.Categorical(rows, categories=levels)),
    "a categorical": lambda rows, levels: pd.Categorical(rows, categories=levels),
    "pandas words": lambda rows, levels: pd.Series(rows, dtype=object),
    "polars": lambda rows, levels: pl.Series(rows, dtype=pl.Categorical),
    "an enum": lambda rows, levels: pl.Series(rows, dtype=pl.Enum(levels)),
    "polars words": lambda rows, levels: pl.Series(rows, dtype=pl.String),
    "a list": lambda rows, levels: list(rows),
    "NumPy": lambda rows, levels: np.array(rows),
    "xarray": lambda rows, levels: xr.DataArray(np.array(rows)),
    "sharded": lambda rows, levels: phx.shard(pd.Series(pd.Categorical(rows, categories=levels)), MESH),
}
TABLES = {"pandas": pd.DataFrame, "polars": pl.DataFrame}


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)), table=st.sampled_from(sorted(TABLES)))
def test_every_row_keeps_its_level_and_every_column_its_place(data, kind, table):
    levels = data.draw(st.lists(words, min_size=2, max_size=6, unique=True))
    first = pd.Series(pd.Categorical(levels, categories=levels))
    columns = data.draw(st.lists(words, min_size=1, max_size=4, unique=True))
    values = {name: np.full(len(levels), float(number)) for number, name in enumerate(columns)}
    run = split_arguments(model, {"site": first, "x": pd.DataFrame(values)})
    names = names_of(run)
    for known in (KnownData.of(run), KnownData.of_record(names, scalars_of(run))):
        rows = data.draw(st.lists(st.sampled_from(levels), min_size=1, max_size=8))
        other = data.draw(st.permutations(levels))
        order = data.draw(st.permutations(columns))
        x = TABLES[table]({name: np.full(len(rows), float(columns.index(name))) for name in order})
        x = phx.shard({"x": x}, MESH)["x"] if kind == "sharded" else x
        site = KINDS[kind](rows, other)
        found = known.split(model, {"site": site, "x": x})
        assert whole(found)["site"].tolist() == [levels.index(level) for level in rows]
        assert whole(found)["x"].tolist() == [list(map(float, range(len(columns))))] * len(rows)
        assert names_of(found) == names


def test_categories_that_no_row_has_and_columns_that_nobody_asks_for_do_not_matter():
    site = pd.Series(pd.Categorical(["south", "east"], categories=["west", "south", "east"]))
    x = pd.DataFrame({"other": ["u", "v"], "income": [5.0, 6.0], "age": [1.0, 2.0]})
    found = again(site=site, x=x)
    assert found["site"].tolist() == [2, 0] and found["x"].tolist() == [[1.0, 5.0], [2.0, 6.0]]
    assert again(site="south")["x"].shape == (4, 2)  # one word, whose number is compiled in


NUMBERS = np.array([0, 1, 2, 0])
NO_NAMES = "data: site has no names of levels, but the run's data had 'east', 'north', 'south'. A number may be a code"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"site": ["east", "west"]}, "data: site[1] has the level 'west', which the run's data did not have; they had"),
        ({"site": pd.Series(["u", "v"], dtype="category")}, "site[0] has the level 'u' (and 1 more), which the run's"),
        ({"site": phx.shard(pd.Series(["east", "v"], dtype="category"), MESH)}, "data: site has the level 'v', which"),
        ({"site": ["east", None]}, "data: site[1] = None is not a word, as the other levels are; a missing level,"),
        ({"site": pd.Series(["east", np.nan])}, "data: site[1] = nan is not a word"),
        ({"site": pl.Series([None, "east"], dtype=pl.Categorical)}, "data: site[0] is missing"),
        ({"site": SITE.where(SITE != "east")}, "data: site[2] is missing, and whole numbers, flags and categories"),
        ({"site": ["east", 1]}, "data: site[1] = 1 is not a word"),
        *(({"site": codes}, NO_NAMES) for codes in (NUMBERS, [0, 1], (0, 1), 2, 1.5, pd.Series(NUMBERS))),
        ({"site": jax.numpy.asarray(NUMBERS)}, NO_NAMES),
        ({"site": phx.shard(NUMBERS, MESH)}, NO_NAMES),
        ({"site": TABLE}, NO_NAMES),
        ({"site": pd.Series(pd.Categorical([1, "1"]))}, "data: site has several levels called '1', such as a number"),
        ({"x": TABLE[["age"]]}, "data: x has no column 'income', which the run's data had; it has 'age'."),
        ({"x": pl.DataFrame({"age": [1.0], "wage": [1.0]})}, "data: x has no column 'income', which the run's data"),
        ({"x": TABLE.rename(columns={"age": "income"})}, "data: x has several columns called 'income'."),
        ({"x": TABLE.to_numpy()}, "data: x has no names of columns, but the run's data had 'age', 'income'. Name them"),
        ({"x": pd.DataFrame(TABLE.to_numpy())}, "data: x has no column 'age', 'income', which the run's data had; it"),
        ({"y": pd.Series(["u", "v"], dtype="category")}, "data: y names the levels 'u', 'v', but the run's data"),
        ({"y": TABLE}, "data: y names the columns 'age', 'income', but the run's data had no names. Give an"),
    ],
    ids=str,
)  # fmt: skip
def test_arguments_without_a_place_are_refused_by_name(data, message):
    with pytest.raises(
        ValueError, match="^" + re.escape(message) if message.startswith("data") else re.escape(message)
    ):
        again(**data)


def test_a_missing_column_of_the_data_is_named():
    with pytest.raises(TypeError, match=re.escape("missing a required argument: 'x'. data gives 'site'")):
        KNOWN.split(model, pd.DataFrame({"site": ["east"]}))


def test_names_along_the_last_axis_of_an_xarray():
    x = xr.DataArray(TABLE.to_numpy(), dims=("row", "of"), coords={"of": ["age", "income"]})
    assert again(x=x[:, ::-1])["x"].tolist() == TABLE.to_numpy().tolist()
    with pytest.raises(ValueError, match="data: x has no column 'age'"):
        again(x=x[:, 1:])


def test_names_of_rows_count_where_variables_have_them():
    school = xr.DataArray([1.0, 2.0], dims="school", coords={"school": ["a", "b"]})
    run = split_arguments(lambda effect: None, {"effect": school})
    assert names_of(run) == {}  # rows like any others
    other = xr.DataArray([3.0], dims="school", coords={"school": ["c"]})
    assert whole(KnownData.of(run).split(lambda effect: None, {"effect": other}))["effect"].tolist() == [3.0]
    known = KnownData.of(run, names_of(run, {"theta": (("a", "b"),)}))
    assert whole(known.split(lambda effect: None, {"effect": school + 1}))["effect"].tolist() == [2.0, 3.0]
    for wrong, message in (
        (school[::-1], "data: effect names its rows 'b', 'a', but variables of the run have an entry for each of 'a',"),
        (np.ones(2), "data: effect has no names of rows, but the run's data had 'a', 'b'."),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            known.split(lambda effect: None, {"effect": wrong})


class TestWhatIsLeftOut:
    def test_numbers_fill_in_though_they_have_a_default(self):
        found = KNOWN.split(model, {"site": ["east"], "x": TABLE[:1]})
        assert found.layout.join(found.arrays)["size"] == 3
        assert whole(found)["scale"] == 2.5 and "y" not in found.names
        assert KNOWN.split(model, {"site": ["east"], "x": TABLE[:1], "size": 5}).layout.join(found.arrays)["size"] == 5

    def test_from_a_file_as_well(self):
        known = KnownData.of_record(names_of(FIRST), scalars_of(FIRST))
        assert scalars_of(FIRST) == {"size": 3, "scale": 2.5}
        assert whole(known.split(model, {"site": ["east"], "x": TABLE[:1]}))["scale"] == 2.5
        shape = split_arguments(lambda **data: None, {"shape": (3, 2), "flag": True, "word": "u", "f": abs, "n": None})
        assert scalars_of(shape) == {"shape": (3, 2), "flag": True, "word": "u", "n": None}
        filled = KnownData.of_record({}, scalars_of(shape)).split(lambda **data: None, {})
        assert filled.layout.join([])["shape"].tolist() == [3, 2]

    def test_an_array_fills_in_where_it_cannot_belong_to_the_rows(self):
        def program(x, group, region, offset, y=None):
            raise AssertionError

        data = {"x": np.ones(5), "group": np.arange(5), "offset": np.ones(5), "y": np.ones(5), "region": SITE}
        known = KnownData.of(split_arguments(program, data))
        given = {"x": np.ones(2), "group": np.arange(2), "offset": np.ones(2)}
        found = known.split(program, given)
        assert whole(found)["region"].tolist() == [1, 2, 0, 1] and "y" not in found.names
        assert dict(zip(found.names, found.labels, strict=True))["region"] == tuple(LEVELS)
        with pytest.raises(TypeError, match="missing a required argument: 'offset'"):
            known.split(program, {"x": np.ones(2), "group": np.arange(2)})
        with pytest.raises(TypeError, match="missing a required argument"):
            known.split(program, {})

    def test_arguments_that_a_program_does_not_take_do_not_fill_in(self):
        assert KNOWN.split(lambda site: None, {"site": ["south"]}).names == ("site",)


WORDS = ["b", "a", "b"]


@pytest.mark.parametrize(
    "like",
    [
        pd.Categorical(WORDS), pd.Series(WORDS, dtype="category"), pd.Index(WORDS, dtype="category"),
        pl.Series(WORDS, dtype=pl.Categorical), pl.Series(WORDS, dtype=pl.Enum(["a", "b"])),
    ],
    ids=lambda like: type(like).__module__,
)  # fmt: skip
def test_simulated_levels_have_the_names_of_those_they_stand_for(like):
    levels = split_arguments(lambda x: None, {"x": like}).labels[0]
    found = split_arguments(lambda x: None, {"x": in_form_of(like, np.array([1, 0, 0, 1]))})
    assert found.arrays[0].tolist() == [1, 0, 0, 1] and found.labels[0] == levels


def test_tables_of_numbered_columns_have_no_names():
    run = split_arguments(lambda x: None, {"x": pd.DataFrame(np.ones((3, 2)))})
    assert names_of(run) == {} and labels_of({}) == {}
    assert whole(KnownData.of(run).split(lambda x: None, {"x": np.ones((1, 2))}))["x"].shape == (1, 2)
