"""`Posterior`: the draws and statistics of a run, with summaries, predictions, files and the record of the run.

A run or a fit hands in arrays `(chain, draw, ...)`, statistics, timing, a `RunRecord` and the model with its data.
Tables, a verdict, predictive draws, reports and files come out. `calibrate` and `predictive` start from a model alone.
Read `posterior.py` first.
"""
