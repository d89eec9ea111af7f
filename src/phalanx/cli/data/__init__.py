"""Data of a command: files as arrays, columns of words as categories, and the match with a model's arguments.

In: paths and a model. Out: `Request`, the model with its arguments and their mesh. Read `request.py` first.
"""
