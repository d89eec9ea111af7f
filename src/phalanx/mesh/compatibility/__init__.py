"""Faults and internals of JAX and NumPyro releases: each work-around is named and can be turned off.

`jax_internals.py` is the only module that names private parts of JAX; `jax_release.py` refuses releases with wrong
numbers; `workarounds.py` lists the faults that are worked around. Read the latter first.
"""
