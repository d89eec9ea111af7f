"""Sequential Monte Carlo: particles that a kernel moves from the prior to the posterior, and the evidence.

In: a program with a proper prior, its data and a kernel. Out: `Particles`. `smc.py` has the call, `stages.py` the loop,
`pool.py` the weights, and `programs.py` the compiled programs. Read `stages.py` first.
"""
