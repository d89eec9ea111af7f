"""Proof, from the jaxprs of a program, that its shares add up.

In: traces on the whole data and on one device. Out: the kind of each output, see `jaxprs.sharding_state`. One file has
the rules for each sort of primitive; `proof.py` applies them. Read `equation_pair.py` first.
"""
