"""One walker over the equations of traced programs, and the analyses and evaluations built on it.

In: closed jaxprs. Out: the inputs that each output depends on, digests of programs, estimates of their cost, and
evaluations with lanes as the last axis, with masked sums, or with forced branches. Read `walking.py` first, then
`dependence.py`.
"""
