"""A program and its data as a log density on a mesh.

In: a program (`language`), its arguments (`inputs`), and the mesh. Out: `Target`, the log density and gradient of an
unconstrained position, and what data decide about it: indices, supports, labels, minibatches. The shares of devices
are decided in `exactness`. Read `target.py` first.
"""
