"""Mutants: changes of one place each, which tests should notice.

    python tests/mutants.py --each 10

A sign, a comparison, a bound that is off by one, a mask that is dropped: places are drawn at random in six parts of the
package. Each mutant stands in a copy of the tree, where quick tests of its part run until one fails, then slow ones.
The file `tests/mutants.json` has what was changed and the first test that failed; those in it are not run again.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests/mutants.json"
SECONDS = 1800
"""Most time for the tests of a mutant; one that takes longer hangs, and counts as noticed."""

MOST_OF_FILE = 2

PARTS = {
    "kernels": ["src/phalanx/kernels"],
    "placements": ["src/phalanx/placements"],
    "reducers": ["src/phalanx/reducers"],
    "store": ["src/phalanx/store"],
    "marginals": ["src/phalanx/marginals"],
    "judging": ["src/phalanx/diagnostics", "src/phalanx/variational/judging", "src/phalanx/posterior/judging.py"],
}
TESTS = {
    "kernels": [
        "tests/unit/kernels", "tests/conformance/test_exact_starts.py", "tests/conformance/test_minibatch_kernels.py",
        "tests/conformance/test_first_draws.py",
    ],
    "placements": ["tests/unit/placements", "tests/mesh/test_row_programs.py", "tests/mesh/test_row_models.py"],
    "reducers": ["tests/unit/reducers", "tests/conformance/test_reducers.py", "tests/mesh/test_spread_reducers.py",
                 "tests/unit/posterior/criticism", "tests/unit/diagnostics"],
    "store": ["tests/unit/store", "tests/conformance/test_stores.py", "tests/unit/run/test_draw_store.py",
              "tests/unit/run/test_checkpoint.py"],
    "marginals": ["tests/unit/marginals"],
    "judging": ["tests/unit/diagnostics", "tests/unit/variational", "tests/unit/posterior"],
}  # fmt: skip
"""Tests of each part, those of its own package first."""

OPERATORS: dict[type, tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
CALLS = {
    "minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min", "argmax": "argmin", "argmin": "argmax",
    "any": "all", "all": "any", "sum": "mean", "mean": "sum",
}  # fmt: skip


class Change(NamedTuple):
    """Replacement of some bytes of a file."""

    file: str
    begin: int
    end: int
    text: str


def changes_of(path: Path) -> Iterator[Change]:
    """Return the changes that may be made in a file, outside of messages, annotations and decorators."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    file = str(path.relative_to(ROOT))

    def begin(node: ast.AST) -> int:
        return starts[node.lineno - 1] + node.col_offset  # pyright: ignore[reportAttributeAccessIssue]

    def end(node: ast.AST) -> int:
        return starts[node.end_lineno - 1] + node.end_col_offset  # pyright: ignore[reportAttributeAccessIssue]

    def between(left: ast.AST, right: ast.AST, operator: ast.AST) -> Iterator[Change]:
        if type(operator) not in OPERATORS:
            return
        old, new = OPERATORS[type(operator)]
        place = source.find(old.encode(), end(left), begin(right))
        if place >= 0:
            yield Change(file, place, place + len(old), new)

    for node in _nodes(ast.parse(source)):
        if isinstance(node, ast.BinOp):
            yield from between(node.left, node.right, node.op)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from between(node.left, node.comparators[0], node.ops[0])
        elif isinstance(node, ast.BoolOp):
            yield from between(node.values[0], node.values[1], node.op)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert | ast.Not):
            yield Change(file, begin(node), begin(node.operand), "")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name == "where" and len(node.args) == 3:
                yield Change(
                    file, begin(node), end(node), f"({source[begin(node.args[1]) : end(node.args[1])].decode()})"
                )
            elif name in CALLS:
                yield Change(file, end(node.func) - len(name), end(node.func), CALLS[name])
        elif isinstance(node, ast.Slice):
            for bound in (node.lower, node.upper):
                if isinstance(bound, ast.Constant) and isinstance(bound.value, int):
                    yield Change(file, begin(bound), end(bound), str(bound.value + 1))


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Return the nodes of expressions that compute something."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
                yield node
                yield from _nodes(node)


def drawn(each: int, seed: int) -> Iterator[tuple[str, Change]]:
    """Return so many changes of each part, at most `MOST_OF_FILE` of a file."""
    for part, places in PARTS.items():
        files = [file for place in places for file in sorted((ROOT / place).rglob("*.py")) or [ROOT / place]]
        changes = [change for file in files for change in changes_of(file)]
        random.Random(f"{seed} {part}").shuffle(changes)
        counts: dict[str, int] = {}
        chosen = 0
        for change in changes:
            counts[change.file] = counts.get(change.file, 0) + 1
            if chosen < each and counts[change.file] <= MOST_OF_FILE:
                chosen += 1
                yield part, change


def noticed_by(tree: Path, part: str, change: Change) -> str:
    """Return the first test that fails on a mutant in a copy of the tree; empty if all pass."""
    path = tree / change.file
    source = path.read_bytes()
    path.write_bytes(source[: change.begin] + change.text.encode() + source[change.end :])
    own = [str(file.relative_to(tree)) for file in sorted((tree / "tests").rglob(f"test_{path.stem}.py"))]
    tests = [*own, *(test for test in TESTS[part] if (tree / test).exists())]
    try:
        for marks in ("not slow", "slow"):
            command = [sys.executable, "-m", "pytest", "-qx", "--tb=no", "-p", "no:cacheprovider", "-m", marks, *tests]
            done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=SECONDS, check=False)
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            if failed or done.returncode not in (0, 5):
                return failed[0].split(" - ")[0] if failed else f"status {done.returncode}"
    except subprocess.TimeoutExpired:
        return "does not end"
    finally:
        path.write_bytes(source)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=10, help="mutants of each part")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", str(tree)], cwd=ROOT, check=True, capture_output=True)
        try:
            for part, change in drawn(options.each, options.seed):
                source = (ROOT / change.file).read_bytes()
                first, last = source.rfind(b"\n", 0, change.begin) + 1, source.find(b"\n", change.end)
                before = source[first:last].decode()
                after = (source[first : change.begin] + change.text.encode() + source[change.end : last]).decode()
                entry = {"part": part, "file": change.file, "before": before.strip(), "after": after.strip()}
                if any(entry.items() <= other.items() for other in found):
                    continue
                found.append({**entry, "noticed_by": noticed_by(tree, part, change)})
                RESULTS.write_text(json.dumps(found, indent=1) + "\n")
                print(json.dumps(found[-1]), flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
    print(f"{sum(bool(entry['noticed_by']) for entry in found)} of {len(found)} mutants were noticed")


if __name__ == "__main__":
    main()
