"""Criticism of a model by its draws: densities of the observations, and what would be observed again.

In: draws, and the model with the run's data or others. Out: arrays `(chain, draw, ...)`, computed on the mesh in
batches, and judgements of them. Read `model_at_draws.py` first.
"""
