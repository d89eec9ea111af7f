"""Devices and processes, and the layout of chains, rows and coordinates over them.

In: JAX's devices and processes. Out: meshes, the layout of positions over them (`RowSharding`, `VectorLayout`,
`Vector`), keys and random numbers per chain and coordinate, transfers between host and devices, and, in
`compatibility`, the private parts and faults of JAX and NumPyro. Read `devices.py` first, then `position.py`.
"""
