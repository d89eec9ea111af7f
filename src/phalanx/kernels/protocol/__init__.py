"""The protocol of a Markov kernel, and adapters to it.

`kernel.py` defines what a kernel is; `adapter.py` drives it for the compiled blocks; `lane_target.py` is the log
density that it sees. `whole_draw.py` and `per_chain.py` make kernels of simpler functions. Read `kernel.py` first.
"""
