"""Verdict on a run: graded findings, in words, from the statistics of `phalanx.diagnostics`.

In: draws, statistics or reducer states. Out: a `Verdict` with a grade and what to try. Read `verdict.py` first.
"""
