"""Page of each model of the gallery: the docstring of its file, its picture, its printed results and its code.

The pages are written to docs/gallery/generated when a build begins. No model runs: `thumbnails.py` made the pictures
and the results.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from docstrings import as_roles

FOLDER = Path(__file__).parents[1] / "gallery"


def page(path: Path) -> str:
    """Return the page of a model as reStructuredText."""
    text = path.read_text()
    title, _, body = (ast.get_docstring(ast.parse(text)) or "").partition("\n")
    code = text[: text.index('"""', 3)].count("\n") + 3
    name = path.stem
    return "\n".join(
        [
            title.rstrip("."),
            "=" * len(title),
            "",
            *as_roles(body.strip().splitlines()),
            "",
            f".. image:: ../pictures/{name}.png",
            f"   :alt: {title.rstrip('.')}",
            "",
            "Its results, as the program prints them:",
            "",
            f".. literalinclude:: ../results/{name}.txt",
            "   :language: text",
            "",
            f"The program, ``docs/gallery/{path.name}``:",
            "",
            f".. literalinclude:: ../{path.name}",
            f"   :lines: {code}-",
            "",
        ]
    )


def _write(app: Any) -> None:
    generated = FOLDER / "generated"
    generated.mkdir(exist_ok=True)
    models = sorted(FOLDER.glob("*.py"))
    for path in generated.glob("*.rst"):
        if path.stem not in {model.stem for model in models}:
            path.unlink()
    for path in models:
        written, text = generated / f"{path.stem}.rst", page(path)
        if not written.exists() or written.read_text() != text:  # the same page need not be built again
            written.write_text(text)


def _links(app: Any, name: str, source: list[str]) -> None:
    """Let links to files of models, which a code host shows, lead to their pages."""
    folder = "" if name == "gallery/index" else "(?:\\.\\./)*gallery/"
    source[0] = re.sub(rf"\]\(({folder})(\w+)\.py\)", r"](\1generated/\2.rst)", source[0])


def setup(app: Any) -> dict[str, Any]:
    """Connect the pages."""
    app.connect("builder-inited", _write)
    app.connect("source-read", _links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
