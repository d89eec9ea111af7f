"""Imports between modules: none leads back to its own module."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
FILES = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}


def imports_of(path: Path) -> set[str]:
    """Modules that a file imports anywhere in it, for type checkers alone and within functions included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found & set(FILES)


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Paths of modules that lead back to where they began; each module that is in one is named once."""
    found: list[list[str]] = []
    done: set[str] = set()

    def follow(module: str, way: list[str]) -> None:
        if module in way:
            found.append([*way[way.index(module) :], module])
        elif module not in done:
            for imported in sorted(imports[module]):
                follow(imported, [*way, module])
            done.add(module)

    for module in sorted(imports):
        follow(module, [])
    return found


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c", "b"]]


def test_no_import_leads_back_to_its_own_module():
    assert circles({module: imports_of(path) for module, path in FILES.items()}) == []
