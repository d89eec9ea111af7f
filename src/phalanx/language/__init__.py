"""The language of models: random variables, parameters, tracing, and handlers.

In: Python functions that call `phx.sample`. Out: what they sample, as `RandomVariable`s, joint densities, and programs
changed by handlers; NumPyro's primitives are understood, too. Read `tracing.py` first.
"""
