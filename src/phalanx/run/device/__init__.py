"""Compiled blocks of a run, and the sinks of draws on the devices.

In: data, seed, tuning, states of chains and sinks, and the numbers of ticks and draws. Out: the advanced states.
`advance.py` advances chains tick by tick, `rounds.py` does so in rounds that tune the kernel, `sink.py` is the protocol
of sinks and counts draws, `recorder.py` and `reducing.py` are sinks, `executables.py` compiles the blocks. Read
`advance.py` first.
"""
