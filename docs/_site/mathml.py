"""Formulas as MathML, which browsers render themselves: pages need no script and no network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert


def _formula(latex: str, display: str) -> str:
    # latex2mathml has no \arg, which is only ever followed by \max or \min.
    return convert(latex.replace(r"\arg", r"\operatorname{arg}"), display=display)


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(f'<span class="math">{_formula(node.astext(), "inline")}</span>')
    raise nodes.SkipNode


def _display(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{_formula(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, Any]:
    """Offer the renderer and choose it."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
