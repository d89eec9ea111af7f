"""Links that Markdown pages have without syntax of their own, so that they read the same on a code host.

Code such as `phx.mcmc(...)` links to its entry in the reference, `jax.vmap` to JAX's own where its inventory is loaded.
Places named by `<a id="...">` can be linked to, and links to pages outside of docs/ lead to their copies in the site.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref

OBJECTS = {"posterior": "phx.Posterior", "fit": "phx.Fit", "sampler": "phx.Sampler", "kernels": "phx.kernels"}
"""What the pages call an object, and the name of its class."""
COPIES = {
    "benchmarks/README.md": "project/benchmarks.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
}
"""Pages outside of docs/, and the pages that include them."""

_NAME = re.compile(
    r"(?P<first>phx|jax|numpyro|arviz|posterior|fit|sampler|kernels)(?P<rest>(?:\.[A-Za-z]\w*)+)(?:\(|$)"
)


def target(code: str) -> str | None:
    """Return the full name of the object that a piece of code uses, if it begins with one."""
    found = _NAME.match(code)
    return found and OBJECTS.get(found["first"], found["first"]) + found["rest"]


def _links(app: Any, document: nodes.document) -> None:
    for literal in list(document.findall(nodes.literal)):
        name = target(literal.astext())
        if name is None or isinstance(literal.parent, nodes.reference | pending_xref | nodes.title):
            continue
        options = {"refdomain": "py", "reftype": "obj", "reftarget": name, "refexplicit": True, "refwarn": False}
        link = pending_xref("", literal.deepcopy(), refdoc=app.env.docname, **options)
        literal.replace_self(link)


def _places(app: Any, document: nodes.document) -> None:
    slugs = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    for raw in document.findall(nodes.raw):
        for name in re.findall(r'<a id="([^"]+)">', raw.astext()):
            slugs.setdefault(name, (raw.line, name, name))


def _copies(app: Any, page: str, source: list[str]) -> None:
    text = source[0]
    for path in re.findall(r"^```\{copy\} (\S+)\n```$", text, re.MULTILINE):
        name = path.removeprefix("../../")
        copy = (app.srcdir.parent / name).read_text()
        copy = copy.replace("](docs/", "](../").replace("](../docs/", "](../")
        text = text.replace(f"```{{copy}} {path}\n```", copy)
        app.env.note_dependency(str(app.srcdir.parent / name))
    for path, copy in COPIES.items():
        up = "../" * page.count("/")
        text = text.replace(f"]({up}../{path}", f"]({up}{copy}")
    source[0] = text


def setup(app: Any) -> dict[str, Any]:
    """Connect the links."""
    app.connect("source-read", _copies)
    app.connect("doctree-read", _places)
    app.connect("doctree-read", _links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
