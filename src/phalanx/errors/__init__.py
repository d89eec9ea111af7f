"""Errors reported in terms of the user's code: its line, the variable involved, and the remedy.

In: an exception that a user's function raised while JAX traced it, or an unknown name. Out: a `ModelError` that names
the line, the variable or argument and a replacement, or a hint with the closest names. Read `model_errors.py` first.
"""
