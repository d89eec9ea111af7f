"""Data as people have them: the same arrays as NumPy's, or a refusal that names the place."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import phalanx as phx
from phalanx.inputs.arguments import split_arguments

try:
    import torch  # pyright: ignore[reportMissingImports]  # no extra has it
except ImportError:  # no dependency: its tensors are tried where it is installed
    torch = None

MESH = phx.make_mesh(chain=1, data=2)
MASKED = np.ma.MaskedArray([1.0, 2.0, 3.0], [False, True, False])


def any_model(**data):
    raise AssertionError("splitting runs nothing")


def split(value):
    return split_arguments(any_model, {"x": value})


def taken(value) -> np.ndarray:
    (array,) = split(value).arrays
    return array


KINDS = {
    "NumPy": np.asarray,
    "a list": lambda x: x.tolist(),
    "nested tuples": lambda x: tuple(map(tuple, x.tolist())) if x.ndim == 2 else (*x.astype(float).tolist(),),
    "a Series": lambda x: pd.Series(x, index=range(7, 7 + len(x))) if x.ndim == 1 else pd.DataFrame(x),
    "a nullable Series": lambda x: pd.Series(x).convert_dtypes() if x.ndim == 1 else pd.DataFrame(x).convert_dtypes(),
    "an Index": lambda x: pd.Index(x) if x.ndim == 1 else pd.DataFrame(x),
    "polars": lambda x: pl.Series(x) if x.ndim == 1 else pl.DataFrame(x),
    "xarray": xr.DataArray,
    "a masked array of which nothing is masked": np.ma.MaskedArray,
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
}
if torch:
    KINDS["torch"] = lambda x, torch=torch: torch.from_numpy(x.copy())
    KINDS["torch with gradient"] = lambda x, torch=torch: torch.tensor(x, dtype=torch.float64, requires_grad=True)
NUMBERS = st.one_of(
    hnp.arrays(
        np.int64, hnp.array_shapes(min_dims=1, max_dims=2, max_side=5), elements=st.integers(-(2**31), 2**31 - 1)
    ),
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=2, max_side=5), elements=st.integers(-99, 99)),
    hnp.arrays(bool, hnp.array_shapes(min_dims=1, max_dims=1, max_side=5)),
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(array=NUMBERS)
def test_every_kind_gives_the_array_that_numpy_gives(kind, array):
    if kind in ("torch with gradient", "nested tuples"):  # floats, which tell whole numbers apart up to 2**24
        array = array % 1000 if array.dtype != bool else array
    found = taken(KINDS[kind](array))
    np.testing.assert_array_equal(np.asarray(found, np.float64), array.astype(np.float64))
    assert found.shape == array.shape and found.dtype.itemsize <= 4
    placed = phx.shard({"x": KINDS[kind](array)}, MESH)["x"]
    np.testing.assert_array_equal(np.asarray(placed, np.float64), array.astype(np.float64))


def test_other_kinds():
    np.testing.assert_array_equal(taken(range(3, 9, 2)), [3, 5, 7])
    if torch:
        assert taken(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32
    assert taken(jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
    assert np.isnan(taken(pd.Series([1.5, None], dtype="Float64"))[1])
    assert np.isnan(taken(pl.Series([1.5, None]))[1])
    assert np.isinf(taken([np.inf, 1.0])[0])
    assert taken(np.float64(2.5)).shape == taken(2.5).shape == ()


def test_lists_of_arrays_and_words_stay_trees():
    ragged = [np.ones(2), np.ones(3)]
    assert [a.shape for a in split(ragged).arrays] == [(2,), (3,)]
    assert split(["a", "b"]).layout.join([]) == {"x": ["a", "b"]}
    assert split({"deep": [1.0, 2.0]}).names == ("x['deep']",)


def test_whole_numbers_and_flags_of_every_library_are_compiled_in():
    for size in (3, np.int64(3), np.uint8(3), np.array(3), xr.DataArray(3), *([torch.tensor(3)] if torch else [])):
        joined = split(size).layout.join([])["x"]
        assert type(joined) is int and joined == 3
    for flag in (True, np.True_, *([torch.tensor(True)] if torch else [])):
        assert split(flag).layout.join([])["x"] is True
    shape = split((3, 2)).layout.join([])["x"]
    assert jnp.zeros(shape).shape == (3, 2) and shape[0] == 3
    assert split((3, 2)).layout == split((3, 2)).layout != split((3, 4)).layout


def test_sizes_and_flags_in_a_run():
    county = pd.Series(pd.Categorical(["b", "a", "c", "a"]))

    def model(y, county, size, centred, obs_size):
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([size]))
        phx.sample("y", dist.Normal(w[county] if centred else 0.0, 1.0).expand([obs_size]), obs=y)

    data = {
        "y": pl.Series([1.0, 2.0, 3.0, 4.0]), "county": county, "size": county.cat.codes.max() + np.int64(1),
        "centred": np.True_, "obs_size": np.int64(4),
    }  # fmt: skip
    sampler = phx.compile(
        model, data, kernel=phx.rwmh(), num_chains=np.int64(2), keep="w", mesh=phx.make_mesh(devices=jax.devices()[:1])  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    sizes: dict[str, Any] = {
        "num_warmup": np.int32(2), "num_samples": np.int64(2), "thin": np.int64(1), "progress": np.False_,
    }  # fmt: skip
    posterior = sampler.run(np.uint32(3), **sizes)  # pyright: ignore[reportArgumentType]
    assert posterior.draws["w"].shape == (2, 2, 3)
    assert posterior.record.data["county"] == "int32 (4,), levels a, b, c"
    other = pl.Series(["b", "a", "c", "a"], dtype=pl.Enum(["c", "b", "a"]))
    same = sampler.run(3, {"y": [1.0, 2.0, 3.0, 4.0], "county": other}, **sizes)  # what is left out is as it was
    np.testing.assert_array_equal(same.draws["w"], posterior.draws["w"])
    with pytest.raises(ValueError, match=re.escape("county has no names of levels, but the run's data had 'a', 'b', ")):
        sampler.run(3, {**data, "county": [0, 1, 2, 3]})


def test_a_table_is_the_arguments():
    def model(y, x):
        phx.sample("y", dist.Normal(phx.sample("b", dist.Normal(0.0, 1.0)) * x, 1.0), obs=y)

    columns = {"name": ["u", "v"], "x": [1.0, 2.0], "y": [3, 4]}
    for table in (pd.DataFrame(columns), pl.DataFrame(columns)):
        assert sorted(split_arguments(model, table).names) == ["x", "y"]
    dataset = xr.Dataset({name: ("row", values) for name, values in columns.items() if name != "name"})
    assert sorted(split_arguments(model, dataset).names) == ["x", "y"]
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        split_arguments(model, pd.DataFrame({"y": [1.0]}))


def test_names_are_kept():
    table = pd.DataFrame({"age": [1, 2], "income": [0.5, 2.0], "old": [True, False]})
    found = split(table)
    assert found.labels == (("age", "income", "old"),)
    np.testing.assert_array_equal(found.arrays[0], [[1, 0.5, 1], [2, 2, 0]])
    words = ["lo", "hi", "lo"]
    assert split(pd.Series(words, dtype=pd.CategoricalDtype(["lo", "mid", "hi"]))).labels == (("lo", "mid", "hi"),)
    enum = split(pl.Series(words, dtype=pl.Enum(["lo", "mid", "hi"])))
    assert enum.labels == (("lo", "mid", "hi"),) and enum.arrays[0].tolist() == [0, 2, 0]
    assert split(pl.Series(words, dtype=pl.Categorical)).arrays[0].tolist() == [0, 1, 0]
    assert split(xr.DataArray(np.ones((2, 2)), dims=("row", "of"), coords={"of": ["a", "b"]})).labels == (("a", "b"),)


TIMES = np.array([1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_002])
BIG = np.array([0, 1, 1_700_000_000_000])


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (BIG, ValueError, "x[2] = 1700000000000 does not fit int32. JAX would silently truncate it."),
        (BIG.tolist(), ValueError, "x[2] = 1700000000000 does not fit int32"),
        (pd.Series(BIG), ValueError, "x[2] = 1700000000000 does not fit int32"),
        (pl.Series(BIG), ValueError, "x[2] = 1700000000000 does not fit int32"),
        (pd.DataFrame({"t": BIG}), ValueError, "x['t'][2] = 1700000000000 does not fit int32"),
        (np.array([[0, 3_000_000_000]]), ValueError, "x[0, 1] = 3000000000 does not fit int32"),
        (np.array([2**33], np.uint64), ValueError, "x[0] = 8589934592 does not fit uint32"),
        ([1, 2**80], ValueError, f"x[1] = {2**80} does not fit int32"),
        (np.array([1.0, 1e300]), ValueError, "x[1] = 1e+300 does not fit float32, and would be infinite."),
        ([0.0, -1e39], ValueError, "x[1] = -1e+39 does not fit float32"),
        (1e300, ValueError, "x = 1e+300 does not fit float32"),
        (TIMES.astype(float), ValueError, "x would lose the differences between its values: near 1.7e+12 numbers"),
        (np.column_stack([np.arange(3.0), TIMES]), ValueError, "x[:, 1] would lose the differences between its values"),
        (1.7e9 + 60.0 * np.arange(10_000), ValueError, "x would lose the differences between its values"),
        (MASKED, ValueError, "x[1] is masked, and a model does not see masks."),
        (pd.Series([1, None, 3], dtype="Int64"), ValueError, "x[1] is missing, and whole numbers, flags and"),
        (pd.Series(["a", None], dtype="category"), ValueError, "x[1] is missing"),
        (pl.Series([True, None]), ValueError, "x[1] is missing"),
        ([1.0, None], ValueError, "x[1] is None: a missing number is float('nan')"),
        ([1.0, "2"], TypeError, "x[1] is '2', which is not a number."),
        ([[1, 2], [3]], ValueError, "x is a list of lists that differ in length (2, 1)."),
        ([], ValueError, "x has shape (0,): it is empty."),
        (pd.Series([1.0, 2.0])[:0], ValueError, "x has shape (0,): it is empty."),
        (np.array(["u", "v"]), TypeError, "cannot be computed with; encode it as numbers. data: x[0] is 'u';"),
        (pd.Series([1.0, "1,234"], dtype=object), TypeError, "x[1] is '1,234'; to number words use pandas"),
        (pd.Series(["u", "v"]), TypeError, "x[0] is 'u'"),
        (pl.Series(["u", "v"]), TypeError, "x[0] is 'u'"),
        (pd.DataFrame({"a": [1], "b": ["u"]}), TypeError, "x['b'][0] is 'u'"),
        (pd.DataFrame({"a": [1], "b": pd.Categorical(["u"])}), TypeError, "x['b'] is categorical, and its codes"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), ValueError, "x has several columns 'a'."),
        (pd.Series([1.0, 2.0], dtype=object), TypeError, "Its items are numbers: use .astype(float)."),
        (pd.Series(pd.date_range("2024", periods=2)), TypeError, "x holds dates (datetime64["),
        (pd.Series(pd.date_range("2024", periods=2, tz="CET")), TypeError, "x holds dates (datetime64[ns])"),
        (pl.Series(["2024-01-01"]).str.to_date(), TypeError, "Give the time since one of them, such as (data: x"),
        (np.array([1, 2], "m8[s]"), TypeError, "x holds durations (timedelta64[s])"),
        (np.array([1j]), TypeError, "x is complex (complex128). Give data: x.real"),
        (scipy.sparse.eye(2).tocsr(), TypeError, "x is a sparse csr_matrix"),
        *([(torch.eye(2).to_sparse(), TypeError, "x is a sparse torch tensor")] if torch else []),
        (xr.Dataset({"a": 1}), TypeError, "x is an xarray Dataset"),
        (bytearray(), TypeError, "x is a bytearray, which cannot be part of a compiled program"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_data_are_refused_with_their_place(value, error, words):
    with pytest.raises(error, match=re.escape(words)) as caught:
        split(value)
    assert str(caught.value).startswith("data: x")


ORDINARY = {
    "heights": np.random.default_rng(1).normal(170, 10, 5000),
    "kelvin": np.random.default_rng(2).normal(288, 5, 200_000),
    "heavy tails": np.random.default_rng(3).standard_cauchy(100_000),
    "a constant but for rounding": 0.1 * np.arange(1, 9) / np.arange(1, 9),
    "a constant": np.full(9, 0.1),
    "years": 1990 + np.arange(12_000) / 365.25,
    "seconds of a year": 1.7e9 + 86_400.0 * np.arange(365),
    "tiny": np.random.default_rng(4).normal(0, 1e-20, 100),
    "with NaN": np.array([0.1, np.nan, 0.3]),
    "two far apart": np.array([1e-9, 1e9]),
}


@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_measurements_pass(kind):
    assert taken(ORDINARY[kind]).dtype == np.float32


@settings(max_examples=40, deadline=None)
@given(
    hnp.arrays(np.int64, st.integers(1, 9), elements=st.integers(-(2**33), 2**33)), st.sampled_from(list(KINDS)[:8:2])
)
def test_whole_numbers_pass_exactly_when_they_fit(array, kind):
    wrong = (array >= 2**31) | (array < -(2**31))
    value = array.tolist() if kind == "nested tuples" else KINDS[kind](array)
    if not wrong.any():
        np.testing.assert_array_equal(taken(value), array)
        return
    words = re.escape(f"x[{int(np.argmax(wrong))}] = {array[np.argmax(wrong)]} does not fit int32")
    with pytest.raises(ValueError, match=f"^data: {words}"):
        split(value)
    # pieces are looked at on their way to the devices, in any order
    with pytest.raises(ValueError, match=r"^shard: x\[\d\] = -?\d+ does not fit int32") as caught:
        phx.shard({"x": value}, MESH)
    place = re.search(r"\d", str(caught.value))
    assert place is not None and wrong[int(place.group())]


def test_an_array_that_is_gone():
    x = jnp.ones(3)
    x.delete()
    with pytest.raises(ValueError, match="^data: x has been deleted, as jax.jit"):
        split(x)
    with pytest.raises(ValueError, match=r"^shard: \['x'\] has been deleted"):
        phx.shard({"x": x}, MESH)


def test_observations_are_looked_at_as_data_are():
    def observing(y, rows=3):
        return phx.trace(phx.seed(lambda: phx.sample("y", dist.Normal(0.0, 1.0).expand([rows]), obs=y), 0))()["y"].value

    np.testing.assert_array_equal(observing(pd.Series([1.0, 2.0, 3.0])), [1, 2, 3])
    np.testing.assert_array_equal(observing([1.0, 2.0, 3.0]), [1, 2, 3])
    with pytest.raises(ValueError, match=re.escape("Variable 'y': the value[2] = 1700000000000 does not fit int32")):
        observing(BIG)
    with pytest.raises(ValueError, match=re.escape("Variable 'y': the value[1] is masked")):
        observing(MASKED)
    with pytest.raises(ValueError, match=re.escape("Variable 'y': the value has shape (0,): it is empty")):
        phx.trace(phx.seed(lambda: phx.sample("y", dist.Normal(0.0, 1.0), obs=np.zeros(0)), 0))()


def test_64_bits_hold_what_32_do_not():
    with jax.enable_x64(True):
        assert taken(BIG).dtype == np.int64 and taken(np.array([1.0, 1e300])).dtype == np.float64
