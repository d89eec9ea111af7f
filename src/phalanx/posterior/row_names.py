"""Check that no two rows of a posterior's tables have the same name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set

from phalanx.diagnostics.elements import Names, element_names
from phalanx.inputs.axis_names import AxisNames

MOST_ROWS = 1_000_000
"""Most rows that are compared."""


def distinct_rows(shapes: Mapping[str, tuple[int, ...]], names: AxisNames, given: Set[str]) -> Names:
    """Return labels under which every row of a table has its own name.

    Labels that data give are left out if they lead to equal rows, such as `w[a,b,c]` of the levels `a,b` and `c`, and
    `a` and `b,c`.

    Args:
        shapes: shapes of the variables that tables have.
        names: names of their axes.
        given: dimensions with entries that the user named.

    Raises:
        ValueError: when names of variables, or of entries that the user gave, lead to equal rows.
    """
    labels = dict(names.labels)
    for name in [name for name in _equal_rows(shapes, labels) if not given & set(names.dims.get(name, ()))]:
        labels.pop(name, None)
    for name, (row, other) in _equal_rows(shapes, labels).items():
        of = f"two entries of {name!r}" if name == other else f"the variables {other!r} and {name!r}"
        raise ValueError(
            f"Tables would have two rows {row!r}: of {of}. Rename a variable in the model, or give other coords=."
        )
    return labels


def _equal_rows(shapes: Mapping[str, tuple[int, ...]], labels: Names) -> dict[str, tuple[str, str]]:
    """Return the variables with a row whose name another row has: that row, and the variable of the other."""
    words = (word for axes in labels.values() if len(axes) > 1 for known in axes if known for word in known)
    may_be_equal = any("[" in name for name in shapes) or any("," in word for word in words)
    if not may_be_equal or sum(map(math.prod, shapes.values())) > MOST_ROWS:
        return {}
    owners: dict[str, str] = {}
    equal: dict[str, tuple[str, str]] = {}
    for name, shape in shapes.items():
        for row in element_names(name, shape, labels):
            owner = owners.setdefault(row, "")
            if owner:
                equal |= {owner: (row, name), name: (row, owner)}
            owners[row] = owner or name
    return equal
