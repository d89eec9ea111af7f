"""Integrators of Hamiltonian and microcanonical motion, and the trajectories that kernels build with them.

In: a point, a momentum, a step size, a metric. Out: the end of a trajectory, or a NUTS tree, and a Metropolis decision.
Read `leapfrog.py` first, then `trajectory.py` (a fixed number of leapfrogs) and `tree.py` (NUTS).
"""
