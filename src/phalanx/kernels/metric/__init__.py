"""Inverse mass matrices: diagonal with a low-rank correction as warm-up adapts them, or given by the user.

In: a `LowRankMetric` from warm-up, or the user's variances or covariance. Out: a `LaneMetric`, which acts on vectors of
all lanes. Read `low_rank.py` first.
"""
