"""Files that outlive a process: archives and checkpoints, both with a version, neither with pickles.

An archive (`archive.py`) is one `.npz` file: a posterior or a fit. A checkpoint (`checkpoint.py`) is a sealed folder: a
fit under way, or an ensemble. Read these two first.
"""
