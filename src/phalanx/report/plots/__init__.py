"""Plots of a run: one file per figure, and the choice of the few quantities to plot. Read `figures.py` first."""
