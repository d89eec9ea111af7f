"""Proof, read off the jaxpr of a program, that its shares add up.

One file of rules for each kind of primitive; `proof.py` applies them to a whole program. Read `step.py` first.
"""
