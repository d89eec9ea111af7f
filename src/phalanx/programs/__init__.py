"""A program traced with its data: its variables on the unconstrained scale, its terms, and the devices' shares.

In: a program (`language`) and its arguments (`inputs`). Out: `TracedProgram` and `Shares`, which `exactness` and
`density` use. Read `traced_program.py` first.
"""
