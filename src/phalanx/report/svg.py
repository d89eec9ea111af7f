"""Figures as SVG within a page: text of the page's font, colours of its style sheet, no identifiers that clash."""

from __future__ import annotations

import re
from contextlib import suppress
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

from phalanx.extras import require
from phalanx.report.plots.style import ACCENT, ALARM, BAND, CHAINS, INK, MUTED, RULE, SECOND

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_THEMED = {
    INK: "ink", MUTED: "muted", RULE: "rule", BAND: "band", ACCENT: "accent", SECOND: "second", ALARM: "alarm",
    **{color: f"chain{number}" for number, color in enumerate(CHAINS) if number > 1},
}  # fmt: skip
"""Names in the style sheet of the colours of plots; the first two chains have those of accent and second."""

_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


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
    return re.sub(r"<[^>]*>", lambda tag: _tag(tag[0], referred), text).strip()


def _lay_out(figure: Figure) -> None:
    """Place the axes now; otherwise saving draws the whole figure once more to place them."""
    with suppress(RuntimeError):  # a figure with a colour bar keeps its engine
        figure.set_layout_engine("tight", pad=0.5)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def _tag(tag: str, referred: set[str]) -> str:
    """Return a tag with colours by name, short numbers, and only identifiers that are referred to."""
    if tag.startswith("<image"):
        return re.sub(r' id="[^"]*"', "", tag)
    if tag.startswith("<svg"):
        (box,) = re.findall(r'viewBox="[^"]*"', tag)
        return f"<svg {box}>"
    tag = re.sub(r' id="([^"]*)"', lambda name: name[0] if name[1] in referred else "", tag)
    tag = re.sub(r"(\d+\.\d)\d+", r"\1", re.sub(r"\s+", " ", tag)) if " d=" in tag or "<use" in tag else tag
    return re.sub(r"#[0-9a-f]{6}\b", lambda color: _color(color[0]), tag)


def _color(color: str) -> str:
    return f"var(--{_THEMED[color]})" if color in _THEMED else color
