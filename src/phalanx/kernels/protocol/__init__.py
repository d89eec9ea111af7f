"""Protocol of a Markov kernel, and adapters to it.

In: a machine, its hyperparameters and tuners. Out: draws of all lanes, tick by tick. Read `kernel.py` first: it defines
a kernel. `adapter.py` drives one for the compiled blocks, `lane_target.py` is the log density of its lanes;
`whole_draw.py` and `per_chain.py` make kernels of simpler functions.
"""
