"""Compilation of a run's blocks: compiler options, the cache of executables, memory estimates.

Read `executable_cache.py` first.
"""
