"""Plots of a run: one file per figure, and the choice of the few quantities to plot.

In: a posterior, through the protocol `Reported`, or single quantities of it. Out: matplotlib figures by name, and PNG
files. `chosen.py` and `suspects.py` choose the quantities, `style.py` and `scales.py` set colours and axes. Read
`figures.py` first.
"""
