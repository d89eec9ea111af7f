"""Tables of a posterior: the summary with the log density on top, and the draws with one row for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics import summary_table
from phalanx.diagnostics.elements import Names, as_draws, element_names

if TYPE_CHECKING:
    from pandas import DataFrame

    from phalanx.diagnostics.table import SummaryTable

INDEX = ("chain", "draw")


def summarize(
    draws: Mapping[str, np.ndarray],
    stats: Mapping[str, np.ndarray],
    names: Iterable[str],
    prob: float,
    labels: Names,
    not_kept: Iterable[str],
) -> SummaryTable:
    """Summarise the log density, if it is known, and the variables named; see `Posterior.summary`."""
    names = [names] if isinstance(names, str) else list(names)
    # Two tables, because a variable may also be called log_density.
    tables = [summary_table(stats, ["log_density"], prob)] if "log_density" in stats else []
    if names or not tables:
        tables.append(summary_table(draws, names, prob, labels, not_kept))
    from pandas import concat  # as slow to import as all of Phalanx, and a run needs none of it

    table: SummaryTable = concat(tables)  # pyright: ignore[reportAssignmentType]
    table.num_heads = int("log_density" in stats)
    return table


def draws_frame(draws: Mapping[str, np.ndarray], labels: Names | None = None) -> DataFrame:
    """Lay out draws as a table; see `Posterior.to_dataframe`.

    Args:
        draws: arrays of shape `(chain, draw, ...)` by variable name.
        labels: by variable, the names of its entries along each axis, or None for an axis that is numbered.

    Returns:
        The table: columns `chain`, `draw`, then the scalar elements in the order and under the names of the summary.

    Raises:
        ValueError: when there are no draws, or a variable is called `chain` or `draw`.
    """
    if not draws:
        raise ValueError("to_dataframe: there are no draws; keep at least one variable when running (keep=None).")
    if clash := [name for name in INDEX if name in draws]:
        raise ValueError(
            f"to_dataframe: the variable {clash[0]!r} has the name of a column of the table. Rename it in the model; "
            f"or convert it under another name, dataclasses.replace(posterior, draws={{...}}).to_dataframe()."
        )
    from pandas import DataFrame, concat  # as slow to import as all of Phalanx

    flat = {name: as_draws(value, name) for name, value in draws.items()}
    chains, length = next(iter(flat.values())).shape[:2]
    numbers = np.indices((chains, length)).reshape(2, -1).T
    # One frame per variable keeps its dtype; `concat` keeps elements apart whose labels are equal.
    parts = [DataFrame(numbers, columns=list(INDEX))]
    for name, value in flat.items():
        columns = element_names(name, value.shape[2:], labels)
        parts.append(DataFrame(value.reshape(chains * length, len(columns)), columns=columns))
    return concat(parts, axis=1)
