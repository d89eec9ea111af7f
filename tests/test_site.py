"""The site: every page is in the table of contents, every public name in the reference, every message exists.

Only the slow test builds it; the others read its sources.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import phalanx as phx

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
SUBPACKAGES = ("datasets", "diagnostics", "ensembles", "flows", "guides", "kernels", "networks", "reducers")


def toctree(page: str) -> list[str]:
    """Return the pages that the tables of contents of a page list."""
    listed = re.findall(r"^```\{toctree\}\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in listed for line in block.splitlines() if line and not line.startswith(":")]
    return [str((DOCS / page).parent.relative_to(DOCS) / line) for line in lines]


def entries() -> list[str]:
    """Return the names that the pages of the reference list, as often as they do."""
    texts = [path.read_text() for path in sorted((DOCS / "reference").glob("*.md"))]
    return [name for text in texts for name in re.findall(r"^   (phx\.\S+)$", text, re.MULTILINE)]


def public_names() -> dict[str, object]:
    """Return every public name with its object."""
    names = {f"phx.{name}": getattr(phx, name) for name in phx.__all__ if name not in SUBPACKAGES}
    for package in SUBPACKAGES:
        module = getattr(phx, package)
        names |= {f"phx.{package}.{name}": getattr(module, name) for name in module.__all__}
    return names


@cache
def source() -> str:
    """Return the package's source, with strings of several lines joined into one."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
    return re.sub(r'"\s*\n\s*(?:\+ )?\(?f?"', "", text)


def test_every_page_is_in_the_contents_once() -> None:
    listed = [*toctree("index"), *toctree("reference/index")]
    assert Counter(listed) == Counter(PAGES - {"index"})


def test_the_start_page_links_to_every_page_of_its_contents() -> None:
    text = (DOCS / "index.md").read_text()
    copies = {"project/benchmarks": "../benchmarks/README", "project/changelog": "../CHANGELOG"}
    copies["project/contributing"] = "../CONTRIBUTING"
    assert [page for page in toctree("index") if f"({copies.get(page, page)}.md)" not in text] == []


def test_every_public_name_has_one_entry_in_the_reference() -> None:
    public, listed = public_names(), entries()
    assert sorted({*listed}) == sorted(listed)
    assert {*listed} <= {*public}
    objects = {id(public[name]) for name in listed}
    text = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    # A name with an object that has an entry under another one needs only be mentioned.
    lacking = [name for name in {*public} - {*listed} if id(public[name]) not in objects or f"`{name}`" not in text]
    assert lacking == []


def test_every_public_object_is_described() -> None:
    lacking = {name for name, item in public_names().items() if not getattr(item, "__doc__", None)}
    # An alias of types, described below its assignment; and NumPyro's, described on the page.
    assert lacking == {"phx.diagnostics.Check", "phx.flows.Permutation"}


def test_messages_of_the_troubleshooting_page_exist() -> None:
    messages = re.findall(r"^### `(.*)`$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(messages) >= 25
    assert [message for message in messages if message not in source()] == []


def test_every_finding_has_its_section() -> None:
    topics = set(re.findall(r'\bFinding\(\s*"([a-zA-Z -]+)"', source()))
    page = (DOCS / "when-the-verdict-says-no.md").read_text()
    assert topics == set(re.findall(r"^### (.*)$", page, re.MULTILINE))


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("sphinx_book_theme", reason="the extra `docs` is not installed")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", DOCS, tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/reference/generated/phx.nuts.html").read_text()
    assert 'id="phx.nuts"' in page and "<math" in page and 'href="phx.mcmc.html#phx.mcmc"' in page
    guide = (tmp_path / "site/variational.html").read_text()
    assert 'href="reference/generated/phx.fit.html#phx.fit"' in guide and 'href="glossary.html#guide"' in guide
    assert "https://cdn" not in page
    posterior = (tmp_path / "site/reference/generated/phx.Posterior.html").read_text()
    assert "statistics of the sampler" in posterior and "&lt;factory&gt;" not in posterior
