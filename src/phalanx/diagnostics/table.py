"""Summary table that prints every column on one line, and only the rows that mixed worst where there are many."""

from __future__ import annotations

from html import escape
from typing import Any

from pandas import DataFrame, concat

from phalanx.diagnostics.judging.verdict import Verdict
from phalanx.errors.message_text import count

_FORMATS = {"ess_bulk": "{:.0f}", "ess_tail": "{:.0f}", "r_hat": "{:.3f}"}
_FORMATS |= dict.fromkeys(("elpd", "se", "elpd_diff", "dse", "p_loo"), "{:.1f}") | {"bad_k": "{:.0f}"}
_OTHERS = "{:.4g}"
_MOST_ROWS = 60
_OF_RUN = "of_run"
"""Entry of a pickle with the attributes of this class; pandas makes copies and parts without them."""

MOST_QUANTITIES = 40
"""The most scalar quantities that a summary prints; of more it prints the worst."""


class SummaryTable(DataFrame):
    """A `pandas.DataFrame` that prints all columns, followed by notes and the verdict on the run.

    Attributes:
        notes: sentences on the run, printed before the verdict.
        verdict: the verdict on the whole run. Only the table of the whole run has it: a selection, a sorted table or a
            copy has None, since a part may look better than the whole.
        num_heads: rows at the top that are always printed, such as the log density. None in a table derived from a
            summary, which prints in its own order.
    """

    notes: tuple[str, ...] = ()
    verdict: Verdict | None = None
    num_heads: int | None = None

    @property
    def _constructor(self) -> type[SummaryTable]:
        return SummaryTable  # a selection from a table, or a sorted one, is a table

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), _OF_RUN: (self.notes, self.verdict, self.num_heads)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        of_run = state.pop(_OF_RUN)
        super().__setstate__(state)
        self.notes, self.verdict, self.num_heads = of_run

    def rows_to_text(self) -> str:
        """Return the rows as text, without the verdict; a long summary has the worst and a line about the others."""
        table, note = self._shown()
        return "\n".join([table.to_string(formatters=self._formats(), max_rows=_MOST_ROWS), *note])

    def __repr__(self) -> str:
        if self.verdict is None:
            return self.rows_to_text()
        return "\n".join([self.rows_to_text(), "", *self.notes, str(self.verdict)])

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        table, note = self._shown()
        parts = [table.to_html(formatters=self._formats(), max_rows=_MOST_ROWS, notebook=True)]
        parts += [f"<p>{escape(line)}</p>" for line in note]
        if self.verdict is not None:
            parts.append(f"<pre>{escape(chr(10).join([*self.notes, str(self.verdict)]))}</pre>")
        return "\n".join(parts)

    def _formats(self) -> dict[Any, Any]:
        text_columns = self.select_dtypes(exclude="number").columns
        return {name: _FORMATS.get(name, _OTHERS).format for name in self.columns if name not in text_columns}

    def _shown(self) -> tuple[DataFrame, list[str]]:
        if self.num_heads is None or len(self) - self.num_heads <= MOST_QUANTITIES:
            return DataFrame(self), []
        rest = worst_first(self.iloc[self.num_heads :])
        line = (
            f"({count(len(rest) - MOST_QUANTITIES, 'more row')}; these {MOST_QUANTITIES} have the highest R-hat, then "
            f"the fewest effective draws. The table itself has all rows.)"
        )
        return DataFrame(concat([self.iloc[: self.num_heads], rest.iloc[:MOST_QUANTITIES]])), [line]


def worst_first(table: DataFrame) -> DataFrame:
    """Sort rows by R-hat, the largest first, then by effective sample size, the smallest first; unknown ones last."""
    return table.sort_values(["r_hat", "ess_bulk"], ascending=[False, True], na_position="last", kind="stable")
