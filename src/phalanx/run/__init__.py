"""Runs of chains: `phx.mcmc`, `phx.compile`, `phx.stream`.

In: a model, its data, a kernel, options. Out: a posterior, or a sampler that makes posteriors. `mcmc.py` has the
public functions. `traced_call.py` checks and traces a model with its data, `build.py` compiles a sampler, `sampler.py`
runs it, new or from a checkpoint (`checkpoint.py`, `continuing.py`). `loop.py` asks a phase (`phases/`) for the goal
of the next block, and `engine.py` advances the state of the run (`state.py`) by that block. `device/` contains the
compiled programs, `host/` the processing of draws on the host, `compile/` caches and compilation, `progress/`
displays, `each/` runs on many data sets. Read `state.py` first.
"""
