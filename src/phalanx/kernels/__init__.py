"""Markov kernels, one algorithm per file; integrators and metrics beside them."""
