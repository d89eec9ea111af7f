"""Posteriors of many data sets, of one run: `phx.Posteriors`.

In: arrays `(set, chain, draw, ...)` in memory or in a store, and the names of the data sets. Out: tables, a verdict on
each, and the posterior of each. Read `posteriors.py` first.
"""
