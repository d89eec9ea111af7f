"""A program with its data, traced once: its variables on the real line, its terms, and who holds which share.

In: a program (`language`) and its arguments (`inputs`). Out: `TracedProgram` and `Shares`, from which `exactness` and
`density` work. Read `traced_program.py` first.
"""
