"""Methods that fit a guide: stochastic steps, climbs with fixed draws, score matching.

In: a guide beside its model. Out: learned parameters and the losses on the way. Read `method.py` first.
"""
