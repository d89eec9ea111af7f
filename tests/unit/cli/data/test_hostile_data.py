"""Hostile data files and arguments of `phalanx sample`: the right values, or one line that names the culprit."""

from __future__ import annotations

import json
import re
import resource
import zipfile

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.slow import with_slow
from tests.unit.store.test_hostile_files import ARRAYS

from phalanx.cli.data.data_file import read_data
from phalanx.cli.data.matching import match_data

MODEL = """
import numpyro.distributions as dist
import phalanx as phx


def coin():
    phx.sample("p", dist.Beta(2.0, 2.0))


def normal(x, **rest):
    phx.sample("x", dist.Normal(phx.sample("m", dist.Normal(0.0, 1.0)), 1.0), obs=x)
"""


def model(x=None, **rest):
    pass


def read(path):
    """Return the arguments that a model gets from a file; None where it is refused in the expected way."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    try:
        found = match_data(model, read_data(path)).arguments
    except ValueError as error:
        assert re.search(rf"--data {re.escape(str(path))}(, line \d+)?: ", str(error)) or str(error).startswith("row ")
        found = None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < 2**28 + 20 * path.stat().st_size
    return found


def file_with(tmp_path_factory, name, content):
    path = tmp_path_factory.mktemp("data") / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return path


CELLS = st.sampled_from(
    ["", "1", "-2.5", "nan", "1e400", "9" * 30, "a", '"', '"a,b"', "True", "\0", "\r", "é", " ", "inf"]
)


@settings(max_examples=150, deadline=None)
@given(table=st.lists(st.lists(CELLS, max_size=4).map(",".join), max_size=5).map("\n".join))
@example(table="x\n" + "a" * 200_000)
@example(table="a" * 200_000 + "\n1")
@example(table='"x\n1\n2')
@example(table="x\n" + "9" * 5000)
@example(table="," * 1000 + "\n" + "," * 1000)
@example(table="x\r1\r2")
def test_tables(tmp_path_factory, table):
    read(file_with(tmp_path_factory, "d.csv", table))


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=60), ending=st.sampled_from([".csv", ".json", ".npz"]))
def test_any_bytes(tmp_path_factory, content, ending):
    read(file_with(tmp_path_factory, f"d{ending}", content))


NUMBERS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(10**400)
VALUES = st.recursive(
    NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(data=st.dictionaries(st.text(max_size=3), VALUES, max_size=3))
@example(data={"x": ["a" * 1_000_000, *"b" * 100_000]})  # 400 GB as an array of words of one width
@example(data={"\ud800": 1, "x": ["\ud800"]})
@example(data={"x": [[[]]]})
@example(data={"x": ["a", 1, True]})
def test_objects(tmp_path_factory, data):
    read(file_with(tmp_path_factory, "d.json", json.dumps(data)))


@pytest.mark.parametrize("text", ['{"x": ' + "1" * 5000 + "}", '{"x": [' + "1" * 5000 + "]}", '{"x": -}', "\ufeff{}"])
def test_texts_that_are_hardly_json(tmp_path_factory, text):
    assert read(file_with(tmp_path_factory, "d.json", text)) is None


@pytest.mark.parametrize("content", ARRAYS.values(), ids=ARRAYS)
def test_arrays(tmp_path, content):
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as file:
        file.writestr("x.npy", content)
    found = read(tmp_path / "d.npz")
    assert found is None or np.asarray(found["x"]).dtype.fields is not None


def test_an_archive_that_unpacks_to_a_thousand_times_its_size(tmp_path):
    np.savez_compressed(tmp_path / "d.npz", x=np.zeros(2**26, np.uint16))
    with pytest.raises(ValueError, match=r"d\.npz: .* its arrays unpack to 134,\d+,\d+ bytes, and 67,108,864 are the"):
        read_data(tmp_path / "d.npz")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_flipped_and_truncated_archives(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("data") / "d.npz"
    np.savez_compressed(path, x=np.arange(50.0), y=np.arange(50) % 2)
    whole = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole = whole[:place]
    else:
        whole[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)
    found = read(path)
    if found is not None and "x" in found:
        np.testing.assert_array_equal(found["x"], np.arange(50.0))


ARGUMENTS = {
    "chains 0": (("--chains", "0"), "num_chains"),
    "chains -1": (("--chains", "-1"), "num_chains"),
    "chains nan": (("--chains", "nan"), "chains"),
    "draws of 10^30": (("--draws", "1" + "0" * 30), ""),
    "draws -5": (("--draws", "-5"), "num_samples"),
    "warmup -1": (("--warmup", "-1"), "num_warmup"),
    "seed 10^30": (("--seed", "1" + "0" * 30), "seed"),
    "seed -1": (("--seed", "-1"), "seed"),
    "thin 0": (("--thin", "0"), "thin"),
    "step size nan": (("--step-size", "nan"), "step_size"),
    "step size -1": (("--step-size", "-1"), "step_size"),
    "acceptance inf": (("--target-acceptance", "inf"), "target_acceptance"),
    "depth 10^9": (("--max-depth", "1000000000"), "max_depth"),
    "kernel": (("--kernel", "__import__('os')"), "kernel"),
    "kernel in a file": (("--kernel", "/etc/passwd:x"), "kernel"),
    "reducer": (("--reducer", "\ud800"), ""),
    "keep": (("--keep", "../../x"), "keep"),
    "seconds": (("--seconds", "nan"), "seconds"),
    "out is a file": (("--out", "models.py"), "models.py"),
    "out below a file": (("--out", "models.py/x"), "models.py"),
    "out with a null": (("--out", "a\0b"), ""),
    "data is a folder": (("--data", "."), "--data"),
    "data with a null": (("--data", "a\0.csv"), "--data"),
    "data is too long": (("--data", "a" * 5000 + ".csv"), "File name too long"),
}


@pytest.mark.parametrize("arguments, words", with_slow(ARGUMENTS, {"draws of 10^30"}))
def test_arguments(phalanx, tmp_path, arguments, words):
    (tmp_path / "models.py").write_text(MODEL)
    status, _, err = phalanx("sample", "models.py:coin", *arguments)
    last = err.removeprefix("compiling ...\n")
    assert status == 2 and last.startswith("phalanx: error: ") and last.count("\n") == 1 and words in last, err


@pytest.mark.parametrize(
    "text", ['{"x": ' + "9" * 400 + "}", '{"x": {"a": [1]}}', '{"x": [1, 2], "\\ud800": 3}', '{"x": []}']
)
def test_values_that_no_model_can_use(phalanx, tmp_path, text):
    (tmp_path / "models.py").write_text(MODEL)
    (tmp_path / "d.json").write_text(text)
    sizes = ("--warmup", "5", "--draws", "5", "--chains", "2")
    status, _, err = phalanx("sample", "models.py:normal", "--data", "d.json", *sizes)
    last = err.removeprefix("compiling ...\n")
    assert status == 0 or (status == 2 and last.startswith("phalanx: error: ") and last.count("\n") == 1), err
