"""A table that prints whole: every column on one line, with as many digits as mean something."""

from __future__ import annotations

from html import escape

from pandas import DataFrame

from phalanx.diagnostics.verdict import Verdict

_FORMATS = {"ess_bulk": "{:.0f}", "ess_tail": "{:.0f}", "r_hat": "{:.3f}"}
_OTHERS = "{:.4g}"
_MOST_ROWS = 60


class SummaryTable(DataFrame):
    """A `pandas.DataFrame` that does not hide columns when printed, and says under them whether the run is good.

    Attributes:
        verdict: the verdict on the whole run. Only the table of the whole run has it: what is selected from it, sorted
            or copied has None, since a part may look better than the whole.
    """

    verdict: Verdict | None = None

    @property
    def _constructor(self) -> type[SummaryTable]:
        return SummaryTable  # what is selected or sorted from a table is a table

    def __repr__(self) -> str:
        formats = {name: _FORMATS.get(name, _OTHERS).format for name in self.columns}
        rows = self.to_string(formatters=formats, max_rows=_MOST_ROWS)
        return rows if self.verdict is None else f"{rows}\n\n{self.verdict}"

    def _repr_html_(self) -> str | None:
        """What a notebook shows."""
        rows = super()._repr_html_()  # pyright: ignore[reportAttributeAccessIssue]
        return rows if rows is None or self.verdict is None else f"{rows}\n<pre>{escape(str(self.verdict))}</pre>"
