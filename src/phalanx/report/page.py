"""HTML page of a run or a fit: one file that contains its style sheet and pictures, without scripts."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from phalanx.diagnostics import Verdict
from phalanx.extras import require
from phalanx.report.plots.figures import png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Level = Literal["good", "warn", "unknown"]

Lines = Sequence[tuple[str, str]]
"""Lines of a cell, each with a piece of code, such as a name, and words; either may be empty."""

MOST_LINES = 8
"""Lines shown of a long list, such as hundreds of devices."""


class Card(NamedTuple):
    """Headline number: its name, the number, a remark under it, and its level."""

    label: str
    value: str
    remark: str = ""
    level: Level = "unknown"


class Picture(NamedTuple):
    """Picture with its title, a note above it, and the text for those who cannot see it."""

    title: str
    note: str
    alt: str
    data: str


class PhaseTime(NamedTuple):
    """Time of one phase of a run: its name, its seconds in words, and its percentage of all seconds."""

    name: str
    seconds: str
    percent: float


class Table(NamedTuple):
    """Summary: a note, titles of columns, and rows of a kind, a name and cells, each with a mark and its text."""

    note: str
    titles: Sequence[str]
    rows: Sequence[tuple[str, str, Sequence[tuple[str, str]]]]


@dataclass(frozen=True)
class Page:
    """Content of a page, top to bottom; `templates/page.html` lays it out.

    Attributes:
        title, subtitle: its header.
        interrupted: first of the findings if the run was interrupted.
        verdict: verdict, with what needs attention and what is in order.
        cards: headline numbers.
        summary: table of the draws, if there are any.
        pictures: the pictures.
        phases: seconds of the phases, if any.
        facts: record of the run, cells by name.
        source: the model's source.
        version: release of Phalanx.
    """

    title: str
    subtitle: str
    verdict: Verdict
    cards: Sequence[Card]
    pictures: Sequence[Picture]
    facts: Mapping[str, Lines]
    source: str
    version: str
    interrupted: str = ""
    summary: Table | None = None
    phases: Sequence[PhaseTime] = ()

    def html(self) -> str:
        """Return the page."""
        jinja2 = require("jinja2")
        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("phalanx.report"), autoescape=True, undefined=jinja2.StrictUndefined,
            trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        )  # fmt: skip
        return environment.get_template("page.html").render(vars(self))

    def write(self, file: Path) -> Path:
        """Write the page to a file, and return its path."""
        file.write_text(self.html(), encoding="utf-8")
        return file


def picture(title: str, figure: Figure, note: str = "", of: str = "") -> Picture:
    """Return a figure as a picture of a page; `of` completes its alternative text."""
    return Picture(title, note, f"{title}{of}", b64encode(png(figure)).decode("ascii"))


def words(text: str) -> Lines:
    """Return text as a cell."""
    return [("", text)] if text else []


def pairs(items: Mapping[str, str]) -> Lines:
    """Return a cell with one line per item: its name as code, then its words."""
    return list(items.items())


def listed(items: Iterable[str]) -> Lines:
    """Return a cell with one item per line: the first few, then the number of others."""
    items = list(items)
    more = [f"and {len(items) - MOST_LINES:,} more"] if len(items) > MOST_LINES else []
    return [("", item) for item in (*items[:MOST_LINES], *more)]


def file_to_write(what: str, path: str | PathLike[str], example: str) -> Path:
    """Return the path of a file to write, after making its folders, so that errors come before the work.

    Args:
        what: caller, for the message.
        path: the file.
        example: a file name to suggest.

    Returns:
        The path.

    Raises:
        ValueError: if the path is a folder, or lies below a file.
    """
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"{what}: {str(path)!r} is a folder; name a file in it, such as {str(file / example)!r}.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(f"{what}: {str(path)!r} cannot be written: {error.filename!r} is a file, no folder.") from None
    return file
