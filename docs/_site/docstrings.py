"""Docstrings as autodoc wants them: the public modules under the name `phx`, and Markdown's code and formulas as roles.

Docstrings write `code` in single backticks and formulas as `$x$` or `$$x$$`, as the pages do; napoleon has already
turned their sections into fields.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from sphinx.domains.python import PyObject
from sphinx.ext.napoleon.docstring import GoogleDocstring

import phalanx

MODULES = ("datasets", "diagnostics", "ensembles", "flows", "guides", "kernels", "networks", "reducers")

_MARKUP = re.compile(
    r"(?P<before>\w?)(?:\$\$(?P<display>.+?)\$\$[ ]?(?P<stop>[,;.]?)|\$(?P<inline>[^$]+?)\$"
    r"|(?<!:)(?P<ticks>`+)(?P<code>[^`]+?)(?P=ticks)|(?P<bar>\|)|(?P<tail>_)(?!\w))(?P<after>\w?)",
    re.DOTALL,
)


def public_modules() -> None:
    """Let `import phx.kernels` and the like find the modules by the names that users write."""
    sys.modules["phx"] = phalanx
    sys.modules.update({f"phx.{name}": getattr(phalanx, name) for name in MODULES})


def as_roles(lines: list[str]) -> list[str]:
    """Return the lines of a docstring with roles for code and formulas, leaving its examples as they are."""
    paragraphs = re.split(r"\n(?=[ ]*\n)", "\n".join(lines))
    return "\n".join(text if _is_code(text) else _MARKUP.sub(_role, text) for text in paragraphs).split("\n")


def _is_code(paragraph: str) -> bool:
    return paragraph.lstrip().startswith((">>> ", ".. "))


def _role(match: re.Match[str]) -> str:
    """Return one formula or piece of code as a role; letters beside it are kept apart by an empty escape."""
    if match["display"]:
        line = match.string[match.string.rfind("\n", 0, match.start()) + 1 : match.start()]
        indent = re.match(" *", line)[0]  # pyright: ignore[reportOptionalSubscript]
        formula = " ".join(match["display"].split()) + match["stop"]
        return f"{match['before']}\n\n{indent}.. math:: {formula}\n\n{indent}{match['after']}"
    if match["inline"]:
        role = f":math:`{' '.join(match['inline'].split())}`"
    elif match["code"]:
        role = f"``{' '.join(match['code'].split())}``"
    else:
        role = f"\\{match['bar'] or match['tail']}"
        return f"{match['before']}{role}{match['after']}"
    before, after = match["before"] and f"{match['before']}\\ ", match["after"] and f"\\ {match['after']}"
    return f"{before}{role}{after}"


def _process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_roles(lines)


def _without_types(docstring: GoogleDocstring, preprocess_types: bool = False) -> list[tuple[str, str, list[str]]]:
    """Return the description under "Returns:", of which napoleon would take the words before a colon for a type."""
    lines = docstring._dedent(docstring._consume_to_next_section())
    return [("", "", lines)] if lines else []


def _as_text(docstring: GoogleDocstring) -> list[str]:
    """Let napoleon parse the docstring of a property as any other, and not the words before a colon as its type."""
    docstring._what = "method"
    docstring._parse()
    return []


def _skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out fields of records, which their class describes already."""
    return True if (obj.__doc__ or "").startswith("Alias for field number") else None


def _without_defaults(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """Leave out the signature of a record that only Phalanx makes, whose defaults have no source."""
    return ("", returns) if what == "class" and "<factory>" in (signature or "") else None


def setup(app: Any) -> dict[str, Any]:
    """Connect the conversion, after napoleon's."""
    public_modules()
    GoogleDocstring._consume_returns_section = _without_types
    GoogleDocstring._parse_attribute_docstring = _as_text
    next(field for field in PyObject.doc_field_types if field.name == "variable").label = "Attributes"
    app.connect("autodoc-process-docstring", _process, priority=900)
    app.connect("autodoc-process-signature", _without_defaults)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
