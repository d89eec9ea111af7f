"""A program and its data as a log density on a mesh.

In: a program (`language`), its arguments (`inputs`), and the mesh. Out: `Target`, the log density and gradient of an
unconstrained position; checks of the data (indices, supports, finite numbers); names of entries; and minibatches.
`placements` evaluates it on each device's rows. Read `target.py` first, then `density.py`.
"""
