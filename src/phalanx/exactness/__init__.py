"""Check that the devices' shares add up to the whole log density.

In: a traced program and its layout over the mesh. Out: the local terms (`share_rule.py`), a proof from the jaxpr
(`proof/`), and, for the terms without a proof, a numeric test on the user's rows (`row_check.py`). Read
`sharding_check.py` first.
"""
