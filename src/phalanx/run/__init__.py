"""Runs of chains: from a model and its data to a posterior.

`mcmc.py` compiles a sampler and `sampler.py` runs it. A run is a value (`state.py`); `loop.py` asks a phase (`phases/`)
what the next block is to draw, and `engine.py` moves the value by that block. `device/` holds the compiled programs,
`host/` what becomes of draws on the host. Read `state.py` first.
"""
