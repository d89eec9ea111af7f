"""Fits of one model to many data sets at once: `phx.fit(..., each=)`.

In: a model, a guide, the data of all data sets, and the arguments of a fit. Out: `phx.Fits`. A lane has the guide of
one data set, with its own parameters, optimiser, windows and rate; a step moves all lanes. `fit_each.py` has the steps
in order; read it first.
"""
