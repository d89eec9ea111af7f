"""Log densities that NumPyro's distributions lack, or compute with too few digits.

In: a distribution and a value. Out: log densities that keep their digits near the ends of an interval, sums over many
rows that are as exact as their terms, bijections onto supports, and `Sharded`. Read `row_sums.py` first.
"""
