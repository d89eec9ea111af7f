"""Pictures of the demos: figures of draws, scores, fits and ensembles, one file per subject.

In: arrays of draws or scores, a posterior, or the history of a training. Out: matplotlib figures, which a demo saves as
PNG files. Read `mixture.py` first.
"""
