"""Model and data of a command: files are read and merged, matched with the model's arguments, and introduced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from phalanx.cli.data.cells import levels
from phalanx.cli.data.data_file import read_data
from phalanx.cli.data.matching import Matched, match_data, shard_rows
from phalanx.demos.options import mesh_with
from phalanx.density.target import Target
from phalanx.inputs.arguments import check_outcome_named
from phalanx.report import console


class Request(NamedTuple):
    """A model's arguments, their mesh if rows are sharded, and lines that introduce them."""

    arguments: dict[str, Any]
    mesh: Mesh | None
    introduction: list[str]

    @classmethod
    def of(
        cls, program: Callable[..., Any], paths: Sequence[Path], data_shards: int | None, missing: str | None = None
    ) -> Request:
        """Read files of data, and select the model's arguments.

        Args:
            program: the model.
            paths: the files.
            data_shards: devices to shard the rows over; None keeps them on one.
            missing: "impute" admits empty cells of words.

        Raises:
            ValueError: if two files hold one name, an argument is missing, or a cell is wrong; the message names the
                file and the place.
        """
        matched = match_data(program, read_files(paths), impute=missing is not None)
        _check_outcome(program, matched)
        arguments = matched.arguments
        mesh = None
        sharded_names = []
        if data_shards is not None:
            mesh = mesh_with(data_shards)
            arguments, sharded_names = shard_rows(arguments, mesh)
        return cls(arguments, mesh, _introduce(paths, arguments, sharded_names, matched.left_out))

    def introduce(self, model: str, quiet: bool) -> None:
        """Print the introduction below the name of the model's file, unless the command is quiet."""
        if not quiet:
            say(self.introduction, Path(model).name)


class FileData(dict[str, Any]):
    """Values by name, and the file of each.

    Attributes:
        files: the path of the file that holds a value, by name.
    """

    def __init__(self, values: Mapping[str, Any], files: Mapping[str, Path]):
        super().__init__(values)
        self.files = dict(files)


def read_files(paths: Sequence[Path]) -> FileData:
    """Read files of data as one.

    Raises:
        ValueError: if two files hold a value of one name.
    """
    arrays = {}
    files = {}
    for path in paths:
        data = read_data(path)
        if twice := [name for name in data if name in arrays]:
            raise ValueError(
                f"--data {path}: {', '.join(map(repr, twice))} {'is' if len(twice) == 1 else 'are'} in "
                f"{files[twice[0]]}, too. Rename {'it' if len(twice) == 1 else 'them'} in one of the files, or leave "
                f"{'it' if len(twice) == 1 else 'them'} out."
            )
        arrays |= data
        files |= dict.fromkeys(data, path)
    return FileData(arrays, files)


def say(lines: Sequence[str], title: str = "") -> None:
    """Print lines as they are, below a rule with a title if there is one."""
    to = console()
    if title:
        to.rule(f"[bold]{title}")
    for line in lines:
        to.print(line, markup=False, highlight=False, soft_wrap=True)


def _check_outcome(program: Callable[..., Any], matched: Matched) -> None:
    """Raise if a column is named almost as the outcome, which is not given, so that the model observes nothing."""
    try:
        check_outcome_named(program, matched.left_out)
    except ValueError:
        if not Target(program, matched.arguments).observes:
            raise


def _introduce(
    paths: Sequence[Path], arguments: Mapping[str, Any], sharded_names: Sequence[str], left_out: Sequence[str]
) -> list[str]:
    text = ", ".join(_describe(name, value) for name, value in arguments.items())
    lines = [f"data: {', '.join(map(str, paths))}: {text or 'no argument of the model'}"] if paths else []
    if sharded_names:
        lines.append(f"sharded over devices: the rows of {', '.join(sharded_names)}")
    if left_out:
        lines.append(f"left out, since the model does not ask for it: {', '.join(left_out)}")
    for name, value in arguments.items():
        if labels := levels(value):
            lines.append(f"{name}: {', '.join(f'{word} is {number}' for number, word in enumerate(labels))}")
    return lines


def _describe(name: str, value: Any) -> str:
    if np.ndim(value):
        return f"{name} {list(value.shape)}"
    return f"{name} = {value!r}" if isinstance(value, str | bool | int | float) else name
