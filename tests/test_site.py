"""The site: every page is in the table of contents, every public name in the reference, every message exists.

Only the slow test builds it; the others read its sources.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from tests.browser import measured, need_browser

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


def grades_in_source() -> dict[str, set[str]]:
    """The grades that findings of each topic may have, by the calls that make them."""
    grades: dict[str, set[str]] = {}
    trees = [ast.parse(path.read_text()) for path in (ROOT / "src").rglob("*.py")]
    for call in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) == "Finding" and call.args and isinstance(call.args[0], ast.Constant):
            given = [keyword.value for keyword in call.keywords if keyword.arg == "grade"] or call.args[3:]
            found = re.findall("'(usable|not good)'", ast.unparse(given[0])) if given else ["not good"]
            grades.setdefault(str(call.args[0].value), set()).update(found)
    grades["heavy weights"].add("usable")  # by `_replace`, where moves change nothing
    return grades


def test_the_page_of_findings_states_their_grades() -> None:
    page = (DOCS / "when-the-verdict-says-no.md").read_text()
    rows = dict(re.findall(r"^\| (usable[^|]*) \| (.+) \|$", page, re.MULTILINE))
    usable, mild, of_particles = (set(topics.split(", ")) for topics in rows.values())
    grades = grades_in_source()
    assert usable == {topic for topic, found in grades.items() if found == {"usable"}}
    assert mild | of_particles == {topic for topic, found in grades.items() if found == {"usable", "not good"}}


def test_every_finding_has_a_picture_or_an_example() -> None:
    page = (DOCS / "when-the-verdict-says-no.md").read_text()
    sections = dict(part.split("\n", 1) for part in re.split(r"^### ", page, flags=re.MULTILINE)[1:])
    shown = re.compile(r"^(!\[|```python$|\|)", re.MULTILINE)
    assert [topic for topic, text in sections.items() if not shown.search(text)] == []
    pictures = {
        topic: re.findall(r"^!\[(.+)\]\(pictures/findings/(.+)\.png\)$", text, re.MULTILINE)
        for topic, text in sections.items()
    }
    named = {name for found in pictures.values() for _, name in found}
    assert named == {path.stem for path in (DOCS / "pictures/findings").iterdir()}
    for topic, found in pictures.items():
        for words, name in found:  # read aloud in place of the picture, and printed below it
            assert name == topic.lower().replace(" ", "-") and f"*{words}.*" in sections[topic]


PHONE, DESK = 390, 1280
"""Widths in pixels at which all pages are looked at."""

MEASURE = """<script>
addEventListener("load", () => {
  const scrolls = (part) => {
    for (; part && part !== document.body; part = part.parentElement)
      if (["auto", "scroll", "hidden"].includes(getComputedStyle(part).overflowX)) return true;
    return false;
  };
  const wide = (part) => part.getBoundingClientRect().right > innerWidth + 1 && !scrolls(part.parentElement);
  const beyond = [...document.querySelectorAll("article *")].filter(wide).map((part) => part.outerHTML.slice(0, 80));
  const broken = [...document.images].filter((one) => one.complete && !one.naturalWidth).map((one) => one.src);
  const width = document.documentElement.scrollWidth;
  parent.postMessage({ ok: width <= innerWidth && !beyond.length && !broken.length, width, beyond, broken }, "*");
});
</script>"""

EVERY_PAGE = """<!doctype html><meta charset="utf-8"><body><script>
const found = {}, left = PAGES.flatMap((page) => WIDTHS.map((width) => [page, width]));
const frame = document.body.appendChild(document.createElement("iframe"));
const next = () => {
  document.documentElement.dataset.measured = JSON.stringify(found);
  if (left.length) [frame.src, frame.width] = left[0];
};
addEventListener("message", (event) => { found[left.shift().join(" ")] = event.data; next(); });
frame.height = 800;
next();
</script>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built."""
    pytest.importorskip("sphinx_book_theme", reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", DOCS, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_warnings(site: Path) -> None:
    page = (site / "reference/generated/phx.nuts.html").read_text()
    assert 'id="phx.nuts"' in page and "<math" in page and 'href="phx.mcmc.html#phx.mcmc"' in page
    guide = (site / "variational.html").read_text()
    assert 'href="reference/generated/phx.fit.html#phx.fit"' in guide and 'href="glossary.html#guide"' in guide
    assert "https://cdn" not in page
    posterior = (site / "reference/generated/phx.Posterior.html").read_text()
    assert "statistics of the sampler" in posterior and "&lt;factory&gt;" not in posterior


@pytest.mark.slow
def test_no_page_is_wider_than_a_phone_or_a_desk(site: Path, tmp_path: Path) -> None:
    need_browser()
    pages = [page for page in site.rglob("*.html") if not page.relative_to(site).parts[0].startswith("_")]
    for page in pages:
        page.write_text(page.read_text().replace("<head>", f"<head>{MEASURE}", 1))
    names = [str(page.relative_to(site)) for page in pages]
    every = EVERY_PAGE.replace("PAGES", json.dumps(names)).replace("WIDTHS", json.dumps([PHONE, DESK]))
    (site / "every.html").write_text(every)
    found, _ = measured(site / "every.html", tmp_path / "profile", seconds=600, timeout=1200)
    assert len(found) == 2 * len(names) > 200
    assert {page: seen for page, seen in found.items() if not seen["ok"]} == {}
