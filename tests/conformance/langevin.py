"""The kernel that docs/extending.md writes: what a stranger's kernel is, as the page has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.test_docs import blocks

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def block_of(name: str) -> str:
    """The page's Python block that defines this function."""
    return next(text for _, text in blocks(PAGE.read_text(), {"python"}) if f"\ndef {name}(" in text)


_namespace: dict[str, Any] = {}
exec(compile(block_of("langevin"), str(PAGE), "exec"), _namespace)
langevin = _namespace["langevin"]
