"""Checks on draws `(chain, draw, ...)`, all elements at once, in NumPy: `phx.diagnostics`.

R-hat, effective sample sizes and Monte-Carlo errors agree with ArviZ; `judge` makes a `Verdict` of `Finding`s.
"""

from phalanx.diagnostics.convergence import ess, mcse, rhat
from phalanx.diagnostics.energy import ebfmi
from phalanx.diagnostics.exchange import to_arviz
from phalanx.diagnostics.interval import hdi
from phalanx.diagnostics.judging.checks import Check, Evidence
from phalanx.diagnostics.judging.finding import Finding
from phalanx.diagnostics.judging.folded import judge_folded
from phalanx.diagnostics.judging.verdict import Verdict, judge, judged
from phalanx.diagnostics.nested import nested_rhat
from phalanx.diagnostics.summary import summary_table

__all__ = [
    "Check", "Evidence", "Finding", "Verdict", "ebfmi", "ess", "hdi", "judge", "judge_folded", "judged", "mcse",
    "nested_rhat", "rhat", "summary_table", "to_arviz",
]  # fmt: skip
