"""Guides: families of distributions made from a model, programs written by hand, and maximum likelihood.

In: a model on a mesh (`problem.py` above). Out: draws with their log density, and parameters to learn. Read `guide.py`
first, then `guide_and_model.py`.
"""
