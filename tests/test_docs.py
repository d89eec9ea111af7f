"""The documentation runs: each page's Python blocks, top to bottom, as one script in its own process.

Quick tests run most pages with few draws and steps, slow ones run all as a reader would. The script keeps each block
on the lines it has in the page, so that a traceback points into the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import phalanx as phx
from phalanx.mesh.compatibility.jax_internals import PLAIN

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHERS = [ROOT / "benchmarks/README.md", *sorted({*ROOT.glob("*.md")} - {*PAGES})]
FEW = {
    "num_warmup": 50, "num_samples": 50, "num_steps": 100, "num_epochs": 1, "num_simulations": 4, "num_particles": 256,
}  # fmt: skip
"""Arguments of the pages' calls, and the most that quick tests let them be."""
FEW_BY_DEFAULT = (
    "import phalanx; phalanx.mcmc.__wrapped__.__kwdefaults__ |= "
    f"{dict(num_warmup=FEW['num_warmup'], num_samples=FEW['num_samples'])}"
)
"""First line of a script, where the page has its title: calls without these arguments are reduced, too."""
LONG = {
    "docs/coming-from/eight-models.md", "docs/devices.md", "docs/diagnostics.md", "docs/discrete.md",
    "docs/ensembles.md", "docs/extending.md", "docs/images.md", "docs/many-data-sets.md", "docs/networks.md",
    "docs/predictive.md", "docs/report.md", "docs/sampling.md", "docs/tracing.md", "docs/variational.md",
    "docs/when-the-verdict-says-no.md",
}  # fmt: skip
"""Pages that compile so much that they are slow with few draws, too: they run as a reader would only."""
WIDTH = 88
"""Columns of a block that a page shows without a scroll bar."""
TIME_LIMIT = 600  # seconds; only so that a page that hangs says so


def blocks(page: str, languages: set[str]) -> list[tuple[int, str]]:
    """The fenced blocks of a page in any of the `languages`: line number of the first line inside, text."""
    found, inside = [], None
    for number, line in enumerate(page.splitlines(), start=1):
        fence = re.match(r" *```(.*)$", line)
        if inside is not None and fence and not fence[1].strip():
            language, start, lines = inside
            if language in languages:
                found.append((start, textwrap.dedent("\n".join(lines))))
            inside = None
        elif inside is not None:
            inside[2].append(line)
        elif fence:
            inside = fence[1].strip(), number + 1, []
    if inside is not None:
        raise ValueError(f"the code block that starts at line {inside[1]} does not end")
    return found


def as_script(page: str) -> str:
    """The Python blocks of a page, each on its own lines, with blank lines where the prose was."""
    script: list[str] = []
    for start, text in blocks(page, {"python"}):
        script += [""] * (start - 1 - len(script)) + text.splitlines()
    return "\n".join(script) + "\n"


def with_few(script: str) -> str:
    """The script with the arguments of `FEW` reduced."""

    def fewer(match: re.Match[str]) -> str:
        return f"{match[1]}={min(int(match[2]), FEW[match[1]])}"

    return re.sub(rf"\b({'|'.join(FEW)})=(\d[\d_]*)\b(?! *[*/])", fewer, script)


def anchors(page: str) -> set[str]:
    """The places of a page that a link can name: its headings, as GitHub writes them, and its `id`s."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', page))


def test_few_draws_keep_the_lines_of_a_script() -> None:
    script = "f(num_samples=20_000,\n  num_steps=8, num_steps=10 * n, num_warmup=200)"
    assert with_few(script) == "f(num_samples=50,\n  num_steps=8, num_steps=10 * n, num_warmup=50)"


def test_a_script_keeps_the_lines_of_its_page() -> None:
    page = "# Title\n\n```python\nx = 1\n```\n\n```sh\nls\n```\n\n- item\n\n  ```python\n  y = x\n  ```\n"
    assert as_script(page).splitlines() == ["", "", "", "x = 1", *[""] * 9, "y = x"]


def test_a_block_that_does_not_end_is_refused() -> None:
    with pytest.raises(ValueError, match="the code block that starts at line 3 does not end"):
        as_script("text\n```python\nx = 1\n")


def page_cases() -> Iterator[Any]:
    for page in PAGES:
        if blocks(page.read_text(), {"python"}):
            name = str(page.relative_to(ROOT))
            if name not in LONG:
                yield pytest.param(page, "few", id=f"{name}-few")
            yield pytest.param(page, "all", id=f"{name}-all", marks=[pytest.mark.slow])


@pytest.mark.parametrize("page, size", [*page_cases()])
def test_python_blocks_run(page: Path, size: str, tmp_path: Path) -> None:
    text = as_script(page.read_text())
    # A file and not `-c`, so that Python can show the source of the page's models.
    script = tmp_path / f"page_{page.stem}.py"  # a page may be named after a library that it imports
    script.write_text(text if size == "all" else FEW_BY_DEFAULT + with_few(text))
    # As a reader would run it, but without a picture window, which would stay open.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "agg"}
    if size == "all":
        del environment["JAX_DISABLE_MOST_OPTIMIZATIONS"]  # some pages compute for longer than they compile
    else:
        environment["XLA_FLAGS"] = " ".join(f"--{name}={value}" for name, value in PLAIN.items())
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT,
    )
    assert done.returncode == 0, f"{page.relative_to(ROOT)} (line numbers below are the page's):\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_shell_blocks_name_what_exists(page: Path) -> None:
    """Shell blocks are not run: they install, or take long. They are listed, and their make targets must exist."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for start, text in blocks(page.read_text(), {"sh", "bash", "shell", "console"}):
        print(f"{page.relative_to(ROOT)}:{start}:\n{textwrap.indent(text, '    ')}")
        unknown = set(re.findall(r"^\$? *make ([a-z-]+)", text, re.MULTILINE)) - targets
        assert not unknown, f"{page.relative_to(ROOT)}, line {start}: the Makefile has no {', '.join(sorted(unknown))}"


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), f"{page.relative_to(ROOT)} links to {link}"
        assert not anchor or anchor in anchors(linked.read_text()), f"{page.relative_to(ROOT)} links to {link}"
    if page.parent.name == "docs" and page.stem != "glossary":
        assert "(glossary.md" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_is_narrow_enough_to_read(page: Path) -> None:
    lines = page.read_text().splitlines()
    languages = {fence[1] for line in lines if (fence := re.match(r" *```(\S*)", line))}
    wide = [
        f"line {start + number}: {line}"
        for start, text in blocks(page.read_text(), {*languages, ""})
        for number, line in enumerate(text.splitlines())
        if len(line) > WIDTH
    ]
    assert not wide, f"{page.relative_to(ROOT)}: {wide}"


def unknown_names(text: str) -> list[str]:
    """The names of `phx` in a text that the package does not have; of an object's attributes, only a class's count."""
    unknown = []
    for name in dict.fromkeys(re.findall(r"(?<![\w./-])phx((?:\.[A-Za-z]\w*)+)", text)):
        found: Any = phx
        for part in name[1:].split("."):
            if not hasattr(found, part):
                unknown.append(f"phx{name}")
                break
            found = getattr(found, part)
            if not isinstance(found, ModuleType | type):
                break
    return unknown


def test_unknown_names_are_noticed() -> None:
    text = "`phx.mclmc()`, phx.nuts(), phx.guides.elbo, phx.kernels.no, phx.Posterior.load, phx.Posterior.lod"
    assert unknown_names(text) == ["phx.mclmc", "phx.kernels.no", "phx.Posterior.lod"]


@pytest.mark.parametrize("folder", ["pages", "src"])
def test_every_name_of_the_package_exists(folder: str) -> None:
    """In pages with their tables, and in docstrings and messages; the pages of history name what was."""
    history = {ROOT / "CHANGELOG.md", ROOT / "docs/project/upgrading.md"}
    paths = {*PAGES, *OTHERS} - history if folder == "pages" else sorted((ROOT / "src").rglob("*.py"))
    wrong = {str(path.relative_to(ROOT)): names for path in paths if (names := unknown_names(path.read_text()))}
    assert not wrong


def test_every_term_of_the_glossary_is_defined_once_and_linked() -> None:
    terms = re.findall(r'<a id="([^"]+)">', (ROOT / "docs/glossary.md").read_text())
    assert sorted({*terms}) == sorted(terms)
    linked = {term for page in PAGES for term in re.findall(r"\(\S*glossary\.md#([^)]+)\)", page.read_text())}
    assert {*terms} - linked == set()


def test_architecture_names_what_exists() -> None:
    """A name within a folder, such as `placement.py`, may follow a path that has the folder."""
    folders, text = [ROOT, ROOT / "src/phalanx"], (ROOT / "docs/architecture.md").read_text()
    for name in re.findall(r"`([a-z_/]+(?:\.py|/))`", text):
        found = next((folder / name for folder in folders if (folder / name).exists()), None)
        assert found is not None, f"docs/architecture.md names {name}"
        folders[2:] = [found.parent]
