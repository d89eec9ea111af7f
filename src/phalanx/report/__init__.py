"""Plots and the HTML report of a run."""

from phalanx.report.figures import save_figures as save_figures
from phalanx.report.write import write_report as write_report
