"""Several files of data as one, and the lines that introduce a request."""

from __future__ import annotations

import numpy as np
import pytest

from phalanx.cli.data.request import Request, read_files


def model(x, y, size=1):
    raise AssertionError("a request runs nothing")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.csv").write_text("x,z\n1,low\n2,high\n")
    (tmp_path / "b.json").write_text('{"y": [1.5, 2.5], "size": 3}')
    np.savez(tmp_path / "c.npz", y=np.zeros(2), x=np.zeros(2))
    return tmp_path


def test_names_are_merged(files):
    request = Request.of(model, [files / "a.csv", files / "b.json"], None)
    assert list(request.arguments) == ["x", "y", "size"] and request.mesh is None
    assert request.introduction[0].endswith("b.json: x [2], y [2], size = 3")
    assert request.introduction[1] == "left out, since the model does not ask for it: z"


def test_a_name_in_two_files_is_refused(files):
    with pytest.raises(ValueError, match=r"--data .*c\.npz: 'y', 'x' are in .*a\.csv|b\.json, too\. Rename them"):
        read_files([files / "a.csv", files / "b.json", files / "c.npz"])


def test_an_error_names_the_file_of_the_column(files):
    (files / "d.csv").write_text("x,y\n1,a\n2,3\n")
    with pytest.raises(ValueError, match=r"^--data .*d\.csv, line 2: row 1, column y: 'a' is not a number.*Write"):
        Request.of(model, [files / "d.csv"], None)


def test_an_error_names_the_line_in_a_file_of_lists(files):
    (files / "d.json").write_text('{"x": [1,\n2, 3],\n"y": ["a",\n"b",\n"3"]}')
    with pytest.raises(ValueError, match=r"^--data .*d\.json, line 3: row 1, column y: 'a' is not a number, but '3'"):
        Request.of(model, [files / "d.json"], None)


def test_empty_cells_of_words_are_missing_entries_on_request(files):
    (files / "d.csv").write_text("x,y\n1,yes\n2,\n3,no\n")
    with pytest.raises(ValueError, match=r"d\.csv, line 3: row 2, column y: the cell is empty.*--missing impute"):
        Request.of(model, [files / "d.csv"], None)
    found = Request.of(model, [files / "d.csv"], None, missing="impute").arguments["y"]
    assert found.isna().tolist() == [False, True, False] and list(found.cat.categories) == ["no", "yes"]
