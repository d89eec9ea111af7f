"""Counts of the size and the shape of `src`; `make lint` runs it.

`python tests/counts.py [-v]` prints the counts, with -v also the places, and exits with 1 where one is over its limit.
Sizes have no limit, which would reward packed code. Whoever lowers another count lowers its limit.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]

LONG = 60
"""Most lines of code of a function."""

PARTICIPLE = re.compile(
    "begun|built|chosen|cut|done|drawn|found|given|grown|held|hidden|kept|known|left|lost|made|meant|met|read|said|seen|"
    "sent|shown|spent|split|stuck|taken|told|understood|written|[a-z]+ed"
)
"""Names that say what happened to a thing, and not what it is."""

NOT_PARTICIPLES = frozenset(["bed", "embed", "feed", "need", "red", "seed", "speed"])
"""Other words in -ed."""


@dataclass(frozen=True)
class Module:
    """A file of Python."""

    path: Path

    @cached_property
    def text(self) -> str:
        """The text."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the syntax tree."""
        return list(ast.walk(ast.parse(self.text)))

    @cached_property
    def code(self) -> set[int]:
        """Numbers of the lines of code: without imports, strings that stand alone, blank lines and comments."""
        lines = self.text.splitlines()
        code = {n for n, line in enumerate(lines, 1) if line.strip() and not line.strip().startswith("#")}
        for node in self.nodes:
            if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
                continue
            if isinstance(node, ast.Expr | ast.Import | ast.ImportFrom):
                code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return code

    def code_of(self, node: ast.FunctionDef) -> int:
        """Return the lines of code of a function."""
        return sum(line in self.code for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))


Places = Iterator[tuple[int, str]]


def unformatted(module: Module) -> Places:
    """Yield the places that the formatter skips."""
    for number, line in enumerate(module.text.splitlines(), 1):
        if "# fmt: skip" in line:
            yield number, line.strip()


def packed(module: Module) -> Places:
    """Yield the assignments of one tuple to another."""
    for node in module.nodes:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Tuple)
        ):
            yield node.lineno, ast.unparse(node.targets[0])


def forwarding(module: Module) -> Places:
    """Yield the functions that only return a call of another one with plain arguments."""
    for node in module.nodes:
        if not isinstance(node, ast.FunctionDef):
            continue
        body = [one for one in node.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
        if len(body) != 1 or not isinstance(body[0], ast.Return) or not isinstance(body[0].value, ast.Call):
            continue
        arguments = [*body[0].value.args, *(keyword.value for keyword in body[0].value.keywords)]
        if all(isinstance(argument, ast.Name | ast.Attribute | ast.Starred) for argument in arguments):
            yield node.lineno, node.name


def long(module: Module) -> Places:
    """Yield the functions of more than `LONG` lines of code."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef) and (lines := module.code_of(node)) > LONG:
            yield node.lineno, f"{node.name}: {lines}"


def participles(module: Module) -> Places:
    """Yield variables, arguments, fields and functions whose name is a participle alone, such as `found`, `_moved`."""
    for node in module.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            place = node.lineno, node.id
        elif isinstance(node, ast.arg):
            place = node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef):
            place = node.lineno, node.name
        else:
            continue
        word = place[1].strip("_").lower()
        if PARTICIPLE.fullmatch(word) and word not in NOT_PARTICIPLES:
            yield place


SIZES: dict[str, Callable[[Module], int]] = {
    "files": lambda module: 1,
    "lines": lambda module: len(module.text.splitlines()),
    "lines of code": lambda module: len(module.code),
}
"""Sizes by name, of one file."""

SHAPES: dict[str, tuple[Callable[[Module], Places], int]] = {
    "places that the formatter skips": (unformatted, 0),
    "assignments of a tuple to a tuple": (packed, 101),
    "functions that only forward": (forwarding, 205),
    "names that are a participle alone": (participles, 828),
    f"functions of more than {LONG} lines of code": (long, 0),
}
"""Kinds of places by name, and the limit of their number."""


def main() -> int:
    """Print the counts; return 1 if one is over its limit."""
    modules = [Module(path) for path in sorted((ROOT / "src").rglob("*.py"))]
    for name, size in SIZES.items():
        print(f"{name}: {sum(map(size, modules)):,}")
    status = 0
    for name, (places_of, limit) in SHAPES.items():
        places = [(module.path, *place) for module in modules for place in places_of(module)]
        print(f"{name}: {len(places):,}, at most {limit:,}")
        if "-v" in sys.argv or len(places) > limit:
            for path, number, what in places:
                print(f"  {path.relative_to(ROOT)}:{number}: {what}")
        status |= len(places) > limit
    return status


if __name__ == "__main__":
    sys.exit(main())
