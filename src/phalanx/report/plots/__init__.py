"""Plots of a run, one file each, and the few quantities worth plotting. Read `figures.py` first."""
