"""HTML page of a run or a fit: one file that contains its style sheet, pictures and the script of its tables."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from phalanx.diagnostics import Verdict
from phalanx.extras import require
from phalanx.report.plots.figures import png
from phalanx.report.plots.style import ACCENT, ALARM, BAND, CHAINS, INK, MUTED, RULE, SECOND

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_THEMED = {
    INK: "ink",
    MUTED: "muted",
    RULE: "rule",
    BAND: "band",
    ACCENT: "accent",
    SECOND: "second",
    ALARM: "alarm",
    **{color: f"chain{number}" for number, color in enumerate(CHAINS) if number > 1},
}
"""Names in the style sheet of the colours of plots; the first two chains have those of accent and second."""

_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))

Level = Literal["good", "warn", "unknown"]

Row = tuple[str, str, str, Sequence[tuple[str, str]]]
"""Row of a table: kind, name, histogram and cells."""

Lines = Sequence[tuple[str, str]]
"""Lines of a cell, each with a piece of code, such as a name, and words; either may be empty."""

MOST_LINES = 8
"""Lines shown of a long list, such as hundreds of devices."""


class Key(NamedTuple):
    """Entry of a legend: the name of its colour in the style sheet, its label and its opacity."""

    color: str
    label: str
    opacity: float


def take_legend(figure: Figure) -> list[Key]:
    """Remove the legends above a figure, and return their entries, which the page writes once for all panels."""
    to_hex = require("matplotlib.colors").to_hex
    keys = []
    for legend in [*figure.legends]:
        entries: Any = zip(legend.legend_handles, legend.get_texts(), strict=True)
        for handle, text in entries:
            color = handle.get_color() if hasattr(handle, "get_color") else handle.get_facecolor()
            if len(color) == 4 and color[3] == 0:  # an outline
                color = handle.get_edgecolor()
            opacity = color[3] if len(color) == 4 else 1.0
            if to_hex(color) in _THEMED:
                keys.append(Key(_THEMED[to_hex(color)], text.get_text(), round(0.2 + 0.8 * opacity, 2)))
        legend.remove()
    figure.legends.clear()
    return keys


def svg(figure: Figure) -> str:
    """Render a figure as an SVG element. Its identifiers are digests, so that equal ones name equal things."""
    buffer = StringIO()
    _lay_out(figure)
    with require("matplotlib").rc_context({"svg.fonttype": "none", "svg.hashsalt": "phalanx"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</defs>", "", text, count=1, flags=re.DOTALL)  # in the style sheet of the page
    referred = set(re.findall(r'#([^")]+)["\)]', text))
    return re.sub(r"<[^>]*>", lambda tag: _shorten_tag(tag[0], referred), text).strip()


def _lay_out(figure: Figure) -> None:
    """Place the axes now; otherwise saving draws the whole figure once more to place them."""
    with suppress(RuntimeError):  # a figure with a colour bar keeps its engine
        figure.set_layout_engine("tight", pad=0.5)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def _shorten_tag(tag: str, referred: set[str]) -> str:
    """Return a tag with colours by name, short numbers, and only identifiers that are referred to."""
    if tag.startswith("<image"):
        return re.sub(r' id="[^"]*"', "", tag)
    if tag.startswith("<svg"):
        (box,) = re.findall(r'viewBox="[^"]*"', tag)
        return f"<svg {box}>"
    tag = re.sub(r' id="([^"]*)"', lambda name: name[0] if name[1] in referred else "", tag)
    tag = re.sub(r"(\d+\.\d)\d+", r"\1", re.sub(r"\s+", " ", tag)) if " d=" in tag or "<use" in tag else tag
    return re.sub(r"#[0-9a-f]{6}\b", lambda color: _named_color(color[0]), tag)


def _named_color(color: str) -> str:
    return f"var(--{_THEMED[color]})" if color in _THEMED else color


class Card(NamedTuple):
    """Headline number: its name, the number, a remark under it, and its level."""

    label: str
    value: str
    remark: str = ""
    level: Level = "unknown"


class Picture(NamedTuple):
    """Picture: the text for those who cannot see it, and an SVG element or else a PNG file in base64."""

    alt: str
    svg: str = ""
    png: str = ""


class PhaseTime(NamedTuple):
    """Time of one phase of a run: its name, its seconds in words, and its percentage of all seconds."""

    name: str
    seconds: str
    percent: float


class Table(NamedTuple):
    """Table that can be sorted and searched.

    Attributes:
        titles: titles of the columns, after that of the names.
        rows: rows of a kind ("first" stays on top), a name, a histogram and cells, each with a mark and its text.
        sorted_by: number of the column by which the rows are in order, the largest first; None for none.
    """

    titles: Sequence[str]
    rows: Sequence[Row]
    sorted_by: int | None = None


class Section(NamedTuple):
    """Part of a page: title, note, sentences on what is missing, pictures side by side, and a table.

    Attributes:
        title, note: its heading, and the explanation below it.
        missing: sentences on what could not be shown, with the reason.
        pictures: the pictures.
        legend: colours and their meaning in all pictures.
        layout: "grid" of pictures of one height, "columns" of pictures of several, or "wide" ones, one below another.
        table: a table below the pictures, or None.
    """

    title: str
    note: str = ""
    missing: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    legend: Sequence[Key] = ()
    layout: Literal["grid", "columns", "wide"] = "grid"
    table: Table | None = None

    @property
    def anchor(self) -> str:
        """Its address within the page."""
        return "".join(char if char.isalnum() else "-" for char in self.title.lower())


@dataclass(frozen=True)
class Page:
    """Content of a page, top to bottom; `templates/page.html` lays it out.

    Attributes:
        title, subtitle: its header.
        interrupted: first of the findings if the run was interrupted.
        verdict: verdict, with what needs attention and what is in order.
        cards: headline numbers.
        sections: its parts, in order.
        phases: seconds of the phases, if any.
        facts: record of the run, cells by name.
        source: the model's source.
        version: release of Phalanx.
    """

    title: str
    subtitle: str
    verdict: Verdict
    cards: Sequence[Card]
    sections: Sequence[Section]
    facts: Mapping[str, Lines]
    source: str
    version: str
    interrupted: str = ""
    phases: Sequence[PhaseTime] = ()

    def html(self) -> str:
        """Return the page."""
        jinja2 = require("jinja2")
        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("phalanx.report"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        return environment.get_template("page.html").render(vars(self))

    def write(self, file: Path) -> Path:
        """Write the page to a file, and return its path."""
        file.write_text(self.html(), encoding="utf-8", errors="backslashreplace")
        return file


def section(title: str, note: str = "", figures: Mapping[str, Figure] | None = None, **parts: Any) -> Section:
    """Return a section with figures of Phalanx by their alternative text; `parts` are those of `Section`."""
    figures = figures or {}
    keys = {}
    for figure in figures.values():
        keys |= dict.fromkeys(take_legend(figure))
    pictures = [Picture(alt, svg=svg(figure)) for alt, figure in figures.items()]
    return Section(title, note, pictures=pictures, legend=list(keys), **parts)


def section_of_users(title: str, figure: Figure) -> Section:
    """Return a section with a user's figure, as it looks elsewhere."""
    return Section(title, pictures=[Picture(title, png=b64encode(png(figure)).decode("ascii"))], layout="wide")


def words(text: str) -> Lines:
    """Return text as a cell."""
    return [("", text)] if text else []


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
