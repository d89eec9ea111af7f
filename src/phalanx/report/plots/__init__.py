"""Plots of a run, and the choice of the few quantities to plot.

In: a posterior, through the protocol `Reported`, or single quantities of it. Out: matplotlib figures by name, and PNG
files. `chosen.py` chooses the quantities, `style.py` sets colours and axes. Read `figures.py` first.
"""
