"""Tuning during warm-up, pooled over every chain on every device.

In: sums over the draws of a round, and samples of a window's draws. Out: hyperparameters for the next round. Tuners and
their schedule are plain arithmetic on the host, without kernels or devices. Read `tuner.py` first, then `warm_up.py`.
"""
