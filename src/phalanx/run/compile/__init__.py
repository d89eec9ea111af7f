"""Compilation of a run's blocks, and their reuse.

In: lowered programs, or the traces of a model, kernel and reducers. Out: executables, from the compiler or the
persistent cache (`compilation.py`) or from earlier calls in the process (`executable_cache.py`); memory estimates; the
number of ticks of the next block. Read `executable_cache.py` first.
"""
