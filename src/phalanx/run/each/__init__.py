"""Runs of one model on many data sets at once: `phx.mcmc(..., each=)`.

In: a model, the data of all data sets, and the arguments of a run. Out: `phx.Posteriors`. The run is that of all chains
of all data sets together: a lane has a chain of one data set, whose arrays, step size and metric are its own.
`run_each.py` has the steps in order; read it first.
"""
