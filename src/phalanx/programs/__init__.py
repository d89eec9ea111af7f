"""A program traced with its data: its variables on the unconstrained scale, its terms, and their rows on a device.

In: a program (`language`) and its arguments (`inputs`). Out: `TracedProgram` and `Sites`, which `density` uses. Read
`traced_program.py` first.
"""
