"""Integrators of Hamiltonian and microcanonical motion, and the trajectories that kernels build with them."""
