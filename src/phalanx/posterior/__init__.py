"""`Posterior`: the draws and statistics of a run, with summaries, predictions, files and the record of the run.

In: arrays `(chain, draw, ...)`, statistics, timing, a `RunRecord` and the model with its data, from a run or a fit.
Out: tables, a verdict, predictive draws, reports and files. `calibrate` and `predictive` need only a model. Read
`posterior.py` first.
"""
