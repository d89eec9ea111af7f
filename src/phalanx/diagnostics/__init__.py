"""Checks on draws `(chain, draw, ...)`, all elements at once, in NumPy: `phx.diagnostics`.

In: arrays of draws and of statistics by name. Out: R-hat, effective sample sizes and Monte-Carlo errors, which agree
with ArviZ, a summary table, and, by `judge`, a `Verdict` of `Finding`s. Read `element_statistics.py` first, then
`judging/verdict.py`.
"""

from phalanx.diagnostics.convergence import ess, mcse, nested_rhat, rhat
from phalanx.diagnostics.energy import ebfmi
from phalanx.diagnostics.exchange import to_arviz
from phalanx.diagnostics.judging.checked_run import CheckedRun
from phalanx.diagnostics.judging.checks import Check, Finding
from phalanx.diagnostics.judging.reduced import judge_reduced
from phalanx.diagnostics.judging.verdict import Verdict, judge, judged
from phalanx.diagnostics.summary import hdi, summary_table

__all__ = [
    "Check",
    "CheckedRun",
    "Finding",
    "Verdict",
    "ebfmi",
    "ess",
    "hdi",
    "judge",
    "judge_reduced",
    "judged",
    "mcse",
    "nested_rhat",
    "rhat",
    "summary_table",
    "to_arviz",
]
