"""Check of words, first lines and class names; `make lint` runs it.

`python tests/prose.py [-v]` prints counts by file, with -v each place, and exits with 1 where a limit is passed.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
SOURCES = sorted((ROOT / "src").rglob("*.py"))
SCRIPTS = sorted((ROOT / "benchmarks").rglob("*.py"))

OPENING = r"(?:What|Whether|Where|How|That|Of|Which)\b"
SHARE_OF_OPENINGS = 0.02
SHARED_NAMES = {"Info", "State", "Tuning"}  # every kernel file has its own

BANNED = {
    "told, tells, tell apart": r"\b(?:tell|tells|told|telling)\b",
    "looked at": r"\blook(?:s|ed|ing)? at\b",
    "taken in": r"\b(?:take|takes|taken|taking|took) in\b(?! (?:turns?|order|one)\b)",
    "spread over": r"\bspread(?:s|ing)? (?:over|out|across|along)\b",
    "alike": r"\balike\b",
    "what is known of": r"\b(?:is|are|was) known of\b",
    "nobody": r"\bnobody\b",
    "none or nothing as a predicate": r"\b(?:is|are|was|were|be|been) (?:(?-i:none)|nothing)\b"
    r"|\bnothing (?:is|are|was|were)\b|\b(?-i:none) (?:is|are|was|were)\b",
    "no such": r"\bno such\b",
    "is said": r"\b(?:is|are|be|been|was|were|and) said\b",
    "gone on with": r"\b(?:go|goes|going|gone|went) on with\b",
    "comes to the host": r"\b(?:come|comes|came|coming) to the host\b",
    "tried out": r"\b(?:try|tries|tried|trying) out\b",
    "is no matter of": r"\bno matter of\b",
    "found out": r"\b(?:find|finds|found|finding) out\b",
    "Sunk, Underway, Begun, Ended": r"(?-i:\b(?:Sunk|Underway|Begun|Ended)\b)",
    "host_fold": r"\bhost_fold\b",
}
"""Private words of earlier releases and patterns that find them; docs/glossary.md defines the terms to use."""

Places = Iterator[tuple[Path, int, str]]


class Finding(NamedTuple):
    """Places at which a rule is broken, and how many may be."""

    rule: str
    places: list[tuple[Path, int, str]]
    allowed: int = 0


def banned_words(text: str) -> list[tuple[int, str]]:
    """Return the line number and the banned word of each use in `text`."""
    found = [(match.start(), match[0]) for word in BANNED.values() for match in re.finditer(word, text, re.IGNORECASE)]
    return [(text.count("\n", 0, start) + 1, word) for start, word in sorted(found)]


def banned_in_source(source: str) -> list[tuple[int, str]]:
    """Return the same for a Python file, token by token, since `for taken in times` is code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline) if banned_words(source) else ()
    return [(token.start[0] + line - 1, word) for token in tokens for line, word in banned_words(token.string)]


def openings(page: str) -> list[tuple[int, str]]:
    """Return the sentences of a Markdown page, outside of code, that open with a relative or a question word."""
    lines, code = [], False
    for line in page.splitlines():
        fence = line.lstrip().startswith("```")
        lines.append("" if code or fence else line)
        code ^= fence
    sentence = re.compile(rf"(?:^(?:#+ |\| |- |\d\. )?|(?<=[.?!] )|(?<=[.?!]\n)){OPENING}[^.]{{0,40}}")
    starts = [i for i, line in enumerate(lines) if line and (i == 0 or not lines[i - 1] or line[0] in "#|-")]
    found = [(i + 1, match[0]) for i in starts if (match := sentence.match(lines[i]))]
    text = "\n".join(lines)
    inner = re.finditer(rf"(?<=[.?!][ \n]){OPENING}[^.]{{0,40}}", text)
    return sorted({*found, *((text.count("\n", 0, m.start()) + 1, m[0].replace("\n", " ")) for m in inner)})


def first_lines(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line number and first line of every docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text.splitlines()[0]


def findings() -> list[Finding]:
    """Return the findings of every rule."""
    trees = {path: ast.parse(path.read_text()) for path in SOURCES}
    lines = [(path, number, line) for path, tree in trees.items() for number, line in first_lines(tree)]
    relative = [(path, number, line) for path, number, line in lines if re.match(OPENING, line)]
    words = [(path, n, word) for path in (*SOURCES, *SCRIPTS) for n, word in banned_in_source(path.read_text())]
    without_names = [(page, re.sub(r"`[^`\n]*`", "", page.read_text())) for page in PAGES]  # old names in the changelog
    words += [(page, n, word) for page, text in without_names for n, word in banned_words(text)]
    sentences = [(page, number, text) for page in PAGES for number, text in openings(page.read_text())]
    scripts = [(path, n, line) for path in SCRIPTS for n, line in first_lines(ast.parse(path.read_text()))]
    sentences += [place for place in scripts if re.match(OPENING, place[2])]
    classes = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in SHARED_NAMES:
                classes[node.name].append((path, node.lineno, node.name))
    shared = [place for places in classes.values() if len(places) > 1 for place in places]
    return [
        Finding(
            f"docstrings of {len(lines):,} that open with a relative clause",
            relative,
            int(SHARE_OF_OPENINGS * len(lines)),
        ),
        Finding("sentences of pages, and docstrings of benchmarks, that open with a relative clause", sentences),
        Finding("banned words", words),
        Finding("class names used twice", shared),
    ]


def main(verbose: bool) -> int:
    """Print the findings, and return the exit status."""
    passed = True
    for rule, places, allowed in findings():
        passed &= len(places) <= allowed
        print(f"{rule}: {len(places)}, at most {allowed}")
        by_file = Counter(path for path, _, _ in places)
        for path, count in by_file.most_common() if verbose or len(places) > allowed else ():
            print(f"  {count:4} {path.relative_to(ROOT)}")
            for number, text in ((n, t) for p, n, t in places if verbose and p == path):
                print(f"         {number}: {text}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main("-v" in sys.argv[1:]))
