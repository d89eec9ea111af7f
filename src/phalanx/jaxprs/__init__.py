"""One walker over the equations of traced programs, and what follows programs with it.

In: closed jaxprs. Out: which outputs depend on which inputs, digests of programs, and evaluations with lanes as the
last axis, with masked sums, or with branches forced. Read `walking.py` first, then `dependence.py`.
"""
