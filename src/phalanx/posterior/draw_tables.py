"""Tables of a posterior: the summary with the log density on top, and the draws with one row per draw."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics import summary_table
from phalanx.diagnostics.elements import Names, as_draws, element_names

if TYPE_CHECKING:
    from pandas import DataFrame

    from phalanx.diagnostics.table import SummaryTable

INDEX = ("chain", "draw")

ANGLE = re.compile(r"(IndependentConstraint\()*Circular\(")
"""Beginning of the text of the support of angles, single ones or arrays of them."""

DIRECTIONAL = (
    "Mean and sd of the angles {} are directional, see phalanx.diagnostics.summary_table; an interval whose hdi_low is "
    "above hdi_high contains pi."
)
"""Note on the summary of angles."""


def summarize(
    draws: Mapping[str, np.ndarray],
    stats: Mapping[str, np.ndarray],
    names: Iterable[str],
    prob: float,
    labels: Names,
    not_kept: Iterable[str],
    angles: Collection[str] = (),
) -> SummaryTable:
    """Summarise the log density, if known, and the named variables; see `Posterior.summary`."""
    names = [names] if isinstance(names, str) else list(names)
    # Two tables, because a variable may be called log_density, too.
    tables = [summary_table(stats, ["log_density"], prob=prob)] if "log_density" in stats else []
    if names or not tables:
        tables.append(summary_table(draws, names, prob=prob, labels=labels, not_kept=not_kept, angles=angles))
    from pandas import concat  # as slow to import as all of Phalanx; a run does not need it

    table: SummaryTable = concat(tables)  # pyright: ignore[reportAssignmentType]
    table.num_heads = int("log_density" in stats)
    return table


def angles_among(latents: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that are angles, of latent variables with their supports in words."""
    return [name for name, support in latents.items() if ANGLE.match(support) and " or " not in support]


def draws_frame(draws: Mapping[str, np.ndarray], labels: Names | None = None) -> DataFrame:
    """Lay out draws as a table; see `Posterior.to_dataframe`."""
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
    # One frame per variable keeps its dtype; `concat` keeps elements with equal labels separate.
    parts = [DataFrame(numbers, columns=list(INDEX))]
    for name, value in flat.items():
        columns = element_names(name, value.shape[2:], labels)
        parts.append(DataFrame(value.reshape(chains * length, len(columns)), columns=columns))
    return concat(parts, axis=1)
