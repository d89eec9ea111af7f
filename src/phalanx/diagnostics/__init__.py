"""Checks on draws: has the chain converged, and how much do the draws say? All elements at once, in NumPy."""

from phalanx.diagnostics.checks import Check as Check
from phalanx.diagnostics.checks import Evidence as Evidence
from phalanx.diagnostics.convergence import ess as ess
from phalanx.diagnostics.convergence import mcse as mcse
from phalanx.diagnostics.convergence import rhat as rhat
from phalanx.diagnostics.energy import ebfmi as ebfmi
from phalanx.diagnostics.exchange import to_arviz as to_arviz
from phalanx.diagnostics.finding import Finding as Finding
from phalanx.diagnostics.folded import judge_folded as judge_folded
from phalanx.diagnostics.interval import hdi as hdi
from phalanx.diagnostics.nested import nested_rhat as nested_rhat
from phalanx.diagnostics.summary import summary_table as summary_table
from phalanx.diagnostics.verdict import Verdict as Verdict
from phalanx.diagnostics.verdict import judge as judge
from phalanx.diagnostics.verdict import judged as judged
