"""Data as they come in: tables, series and lists become placed arrays, and names of levels and columns are kept.

In: what a user passes as data. Out: `Arguments`, the arrays with their dtypes, shardings and names. Read `arguments.py`
first.
"""
