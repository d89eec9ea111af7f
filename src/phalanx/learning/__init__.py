"""Gradient steps: the loop that makes them, rows in batches, climbs to a maximum, and the cache of compiled fits.

In: an objective and its data. Out: learned values. Fits, ensembles and demos share it. Read `loop.py` first.
"""
