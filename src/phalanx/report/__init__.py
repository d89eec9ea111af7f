"""Reports of a run: plots, an HTML page, a summary on the terminal, and a folder of files.

In: a posterior, through the protocol `Reported`. Out: HTML, PNG and JSON files, or printed lines. Read `write.py`
first: it lists the parts of the page.
"""

from phalanx.report.plots.figures import save_figures as save_figures
from phalanx.report.plots.predictive_check import reliability_figure as reliability_figure
from phalanx.report.terminal import console as console
from phalanx.report.terminal import print_run as print_run
from phalanx.report.terminal import print_verdict as print_verdict
from phalanx.report.write import write_folder as write_folder
from phalanx.report.write import write_report as write_report
from phalanx.report.write import write_result as write_result
