"""The documentation runs: each page's Python blocks, top to bottom, as one script in a process of its own.

The script keeps each block on the lines it has in the page, so that a traceback points into the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONG = {
    "command-line", "data", "devices", "diagnostics", "ensembles", "extending", "images", "many-chains", "networks",
    "predictive", "programs", "sampling", "thinking-in-spmd", "tracing", "variational",
}  # fmt: skip
"""Pages that take longer: `make docs` runs all of them."""
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


def test_a_script_keeps_the_lines_of_its_page() -> None:
    page = "# Title\n\n```python\nx = 1\n```\n\n```sh\nls\n```\n\n- item\n\n  ```python\n  y = x\n  ```\n"
    assert as_script(page).splitlines() == ["", "", "", "x = 1", *[""] * 9, "y = x"]


def test_a_block_that_does_not_end_is_refused() -> None:
    with pytest.raises(ValueError, match="the code block that starts at line 3 does not end"):
        as_script("text\n```python\nx = 1\n")


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page.stem in LONG else []) for page in PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    if not blocks(text, {"python"}):
        return
    # A file and not `-c`, so that Python can show the source of the page's models.
    script = tmp_path / f"{page.stem}.py"
    script.write_text(as_script(text))
    # As a reader would run it, but for a picture window, which nobody would close.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "agg"}
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
