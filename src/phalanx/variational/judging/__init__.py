"""Judgement of a fit: importance weights, tails, modes that the guide misses, and the evidence.

In: a fitted guide. Out: a graded verdict. Read `judge.py` first.
"""
