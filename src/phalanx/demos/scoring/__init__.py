"""Scores of predictions on test rows or hidden entries, as the demos print them.

In: test data, with predicted probabilities or with the posterior that predicts them. Out: accuracy, log loss,
calibration and the like, in a `NamedTuple`. Read `held_out.py` first.
"""
