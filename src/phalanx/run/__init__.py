"""Runs of chains: `phx.mcmc`, `phx.compile`, `phx.stream`.

In: a model, its data, a kernel, options. Out: a posterior, or a sampler that makes posteriors. `mcmc.py` compiles a
sampler and `sampler.py` runs it. `loop.py` asks a phase (`phases/`) for the goal of the next block, and `engine.py`
advances the state of the run (`state.py`) by that block. `device/` contains the compiled programs, `host/` the
processing of draws on the host, `compile/` caches and compilation, `progress/` displays. Read `state.py` first.
"""
