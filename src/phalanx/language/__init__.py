"""The language of models: random variables, parameters, tracing, and handlers.

In: programs, which are Python functions that call `phx.sample` or NumPyro's primitives. Out: their variables as
`RandomVariable`s, their joint densities, and new programs that handlers make of them. Read `tracing.py` first.
"""
