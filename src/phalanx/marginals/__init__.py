"""Discrete latent variables of finite support, summed out of a program and drawn again afterwards.

In: a program (`language`). Out: a program of its continuous variables, whose density is the sum over all values of the
discrete ones. Read `marginalize.py` first; `value_tables.py` evaluates the program at all values, `factors.py` finds
independent parts of it and sums. `loops.py` makes loops vectors.
"""
