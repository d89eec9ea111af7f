"""Draws in several processes, each of which holds those of its own chains.

In: the draws of a process, and the chains that each process holds. Out: arrays that are gathered when they are used
(`gathered.py`), methods of a posterior that all processes must call together (`together.py`), and files of draws that
each process writes (`segments.py`). Read `together.py` first.
"""
