"""Cases of a parametrised test of which some are slow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest


def with_slow(cases: Iterable[Any] | Mapping[str, Any], slow: Collection[Any]) -> list[Any]:
    """Return the cases of a test, with those in `slow` marked slow; for a mapping, its values, named by its keys."""
    names = list(cases)
    missing = [name for name in slow if name not in names]
    assert not missing, f"there are no cases {missing}"
    values = cases if isinstance(cases, Mapping) else dict(zip(names, names, strict=True))
    return [
        pytest.param(
            *(value if type(value) is tuple else (value,)),
            id=name if isinstance(cases, Mapping) else None,
            marks=[pytest.mark.slow] if name in slow else [],
        )
        for name, value in values.items()
    ]
