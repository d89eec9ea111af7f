"""Conversion of users' data: tables, series and lists become placed arrays; names of levels and columns are kept.

In: the keyword arguments of a program, or a table. Out: `Arguments`, the arrays with their dtypes, shardings and names.
Read `arguments.py` first.
"""
