"""Tuning during warm-up, pooled over every chain on every device.

In: sums over the draws of a round, and samples of a window's draws. Out: hyperparameters for the next round. Tuners and
their schedule are arithmetic without kernels: of numbers on the host or, with `Tuner.on_devices`, of values that JAX
traces. Read `tuner.py` first, then `warm_up.py`.
"""
