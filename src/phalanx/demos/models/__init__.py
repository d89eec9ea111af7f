"""Programs and networks of the larger demos, without their runs; the demo of the same subject runs them.

In: data, and sizes of the networks. Out: programs to sample or fit, and networks. Read `factorisation.py` first, then
`vae_programs.py`.
"""
