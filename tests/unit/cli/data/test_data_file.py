"""Data in files: what comes out of each format, and what is said of a file that is of none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from phalanx.cli.data.cells import coded
from phalanx.cli.data.data_file import read_data


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_an_archive(tmp_path: Path) -> None:
    x = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    np.savez(tmp_path / "d.npz", x=x, groups=np.array([0, 1, 1]), size=7, scale=0.5)
    data = read_data(tmp_path / "d.npz")
    np.testing.assert_array_equal(data["x"], x)
    assert data["x"].dtype == np.float32 and data["groups"].dtype.kind == "i"
    assert data["size"] == 7 and type(data["size"]) is int, "a size may decide a shape"
    assert data["scale"] == 0.5


def test_a_table(tmp_path: Path) -> None:
    text = 'id, floor,"log radon",county,old\n1, 0,0.5,"Aitkin, MN",True\n2, 1,,Anoka,False\n'
    data = read_data(written(tmp_path, "d.CSV", text))
    assert list(data) == ["id", "floor", "log radon", "county", "old"]
    assert data["floor"].tolist() == [0, 1] and data["floor"].dtype.kind == "i"
    assert data["log radon"][0] == 0.5 and np.isnan(data["log radon"][1])
    assert data["county"].tolist() == ["Aitkin, MN", "Anoka"]
    assert data["old"].tolist() == [True, False] and data["old"].dtype == bool


def test_an_object(tmp_path: Path) -> None:
    values = {"J": 8, "scale": 2.5, "y": [28, 8], "x": [[1, 2.5], [3, 4]], "name": "schools", "prior": {"sd": [1.5]}}
    data = read_data(written(tmp_path, "d.json", json.dumps(values)))
    assert data["J"] == 8 and data["scale"] == 2.5 and data["name"] == "schools"
    assert data["y"].tolist() == [28, 8] and data["y"].dtype.kind == "i"
    assert data["x"].shape == (2, 2) and data["x"].dtype.kind == "f"
    assert data["prior"]["sd"].tolist() == [1.5]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("d.txt", "x\n1\n", "expected a file that ends in .npz, .csv, .json."),
        ("d.npz", "words", "not an archive of plain arrays, as np.savez(path, x=x, y=y) writes: "),
        ("d.csv", "", "not a table of comma-separated values: "),
        ("d.csv", "x,y\n1,2\n1,2,3\n", "not a table of comma-separated values: "),
        ("d.csv", "x,y\n1,2,3\n1,2,3\n", "not a table of comma-separated values: "),
        ("d.csv", b"x\n\xff\xfe\n", "not a table of comma-separated values: "),
        (
            "d.csv",
            "x,y\nM\xfcller,2\n".encode("latin1"),
            "not a table of comma-separated values: byte 0xfc is not UTF-8. "
            "It may be Latin-1: iconv -f latin1 -t utf-8 d.csv > utf8.csv",
        ),
        ("d.csv", "size,y, size\n1,2,3\n", "several columns are called 'size'. Rename all but one of each."),
        ("d.csv", "x;y\n1,5;2\n", "not a table of comma-separated values: the first line is separated by ';'."),
        ("d.csv", "1,2.5\n3,4\n", "the first line must hold the names of the columns, but it has 1, 2.5."),
        ("d.csv", "x,y\n", "there are no rows under the line of names."),
        ("d.json", "{'x': 1}", "not JSON: "),
        ("d.json", "[1, 2]", "expected an object of values by name, got a list."),
        ("d.json", '{"x": 1, "y": {"a": 2, "a": 3}}', "the name 'a' occurs twice in one object; leave one out."),
        ("d.json", '{"x": ' + "[" * 5000 + "]" * 5000 + "}", "its values are nested too deeply to be data."),
        ("d.json", '{"x": ' + "[" * 900 + "]" * 900 + "}", "its values are nested too deeply to be data."),
        ("d.json", '{"x": ' + "[" * 70 + "1" + "]" * 70 + "}", "its values are nested too deeply to be data."),
        ("d.json", '{"x": [[1, 2.5], [1e400, 3]]}', ", line 1: x[1][0]: '1e400' is larger than the largest number"),
        (
            "d.json",
            '{"p": {"a": [[1], [2]],\n "x": -1e999}}',
            ", line 2: p['x']: '-1e999' is larger",
        ),
        (
            "d.json",
            '{"x": [1, 100000000000000000000000]}',
            ", line 1: x holds a whole number beyond 2^63; write",
        ),
        (
            "d.csv",
            'a,x \n"1\n",2.5\n\ninf,1e400\n',
            ", line 5: row 2, column x: '1e400' is larger than",
        ),
        ("d.json", '{"x": [[1, 2], [3]]}', ", line 1: the lists within x differ in length; pad them to one shape."),
        (
            "d.json",
            '{"p": {"x": [1, null]}}',
            ", line 1: p['x'] holds something other than numbers, such as null;",
        ),
    ],
)
def test_a_file_that_is_something_else(tmp_path: Path, name: str, content: str | bytes, complaint: str) -> None:
    path, place = written(tmp_path, name, content), "" if complaint.startswith(", line") else ": "
    with pytest.raises(ValueError, match=f"^{re.escape(f'--data {path}{place}{complaint}')}"):
        read_data(path)


def test_infinity_that_is_meant_is_infinity(tmp_path: Path) -> None:
    table = read_data(written(tmp_path, "d.csv", "x,y\ninf,1\n-inf,1e308\n"))
    assert table["x"].tolist() == [np.inf, -np.inf] and table["y"].tolist() == [1, 1e308]
    assert read_data(written(tmp_path, "d.json", '{"x": [1, Infinity]}'))["x"].tolist() == [1, np.inf]


def test_spaces_around_names_and_words_are_not_part_of_them(tmp_path: Path) -> None:
    text = ' x , y ,county \n1 , 2,east \n3, 4.5 ,east\n5,6,"west, far "\n'
    data = read_data(written(tmp_path, "d.csv", text))
    assert list(data) == ["x", "y", "county"] and data["x"].tolist() == [1, 3, 5] and data["y"].tolist() == [2, 4.5, 6]
    assert data["county"].tolist() == ["east", "east", "west, far"]


@pytest.mark.parametrize("cell", ["1_000", "1,000", "١٢", "12 km"])
def test_the_cell_that_is_no_number_is_blamed(tmp_path: Path, cell: str) -> None:
    rows = [str(number) for number in range(40)]
    rows[30] = f'"{cell}"'
    path = written(tmp_path, "d.csv", "x\n" + "\n".join(rows) + "\n")
    with pytest.raises(ValueError, match=f"^row 31, column x: '{cell}' is not a number, but '0' in row 1 is one"):
        coded("x", read_data(path)["x"])


def test_whole_numbers_beyond_the_largest_number(tmp_path: Path) -> None:
    path = written(tmp_path, "d.csv", f"x\n1\n{'9' * 400}\n")
    with pytest.raises(ValueError, match=r"^row 2, column x: '9+' is larger than the largest number"):
        coded("x", read_data(path)["x"])


def test_an_archive_of_pickles(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.array([{}, "object"], dtype=object))
    with pytest.raises(ValueError, match="not an archive of plain arrays"):
        read_data(tmp_path / "d.npz")


def test_no_such_file(tmp_path: Path) -> None:
    message = f"--data {tmp_path / 'd.csv'}: the file does not exist in {tmp_path}."
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        read_data(tmp_path / "d.csv")


def test_numbers_that_came_as_words_are_no_categories(tmp_path: Path) -> None:
    path = tmp_path / "quoted.json"
    path.write_text('{"size": [10, 20, 30], "price": ["100", "20", "3"]}')
    with pytest.raises(ValueError, match="row 1, column price: the numbers of this column are written as words, '100'"):
        coded("price", np.asarray(read_data(path)["price"]))


def test_very_large_whole_numbers_are_no_categories(tmp_path: Path) -> None:
    path = tmp_path / "huge.csv"
    path.write_text("size,price\n10,100000000000000000000000\n20,200\n30,3\n")
    np.testing.assert_array_equal(coded("price", read_data(path)["price"]), [1e23, 200.0, 3.0])
