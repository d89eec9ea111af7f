"""Variational inference: guides, objectives, and the fit of a guide to a model's posterior.

In: a model, a guide and data. Out: a `Fit`, with parameters, draws, the evidence and a verdict. Read `fit.py` first.
"""
