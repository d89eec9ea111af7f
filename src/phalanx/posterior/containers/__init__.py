"""Containers of other libraries for a posterior: data sets of xarray, and ArviZ's groups.

In: draws, the record with the names of axes, the model with its data. Out: objects of xarray and ArviZ. Read
`arviz_groups.py` first.
"""
