"""Verdict on a run: graded findings from the statistics next door, in words.

In: draws, statistics or reducer states. Out: a `Verdict` with a grade and what to try. Read `verdict.py` first.
"""
