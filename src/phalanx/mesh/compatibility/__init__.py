"""Faults and internals of JAX and NumPyro releases.

Each work-around has a name in `workarounds.py` and can be turned off. Only `jax_internals.py` and
`numpyro_internals.py` name private parts of the two; `shared_store.py` calls those of JAX's coordination service;
`jax_release.py` refuses releases with wrong numbers. Read `workarounds.py` first.
"""
