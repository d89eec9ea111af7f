"""A table that prints whole: every column on one line, with as many digits as mean something."""

from __future__ import annotations

from pandas import DataFrame

_FORMATS = {"ess_bulk": "{:.0f}", "ess_tail": "{:.0f}", "r_hat": "{:.3f}"}
_OTHERS = "{:.4g}"
_MOST_ROWS = 60


class SummaryTable(DataFrame):
    """A `pandas.DataFrame` that does not hide columns when printed."""

    @property
    def _constructor(self) -> type[SummaryTable]:
        return SummaryTable  # what is selected or sorted from a table is a table

    def __repr__(self) -> str:
        formats = {name: _FORMATS.get(name, _OTHERS).format for name in self.columns}
        return self.to_string(formatters=formats, max_rows=_MOST_ROWS)
