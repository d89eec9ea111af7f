"""Do the shares of devices add up to the whole log density?

In: a traced program and its layout over the mesh. Out: which terms are local (`share_rule.py`), a proof from the jaxpr
(`proof/`), and where no proof exists a numeric test on the user's rows (`row_check.py`). Read `sharding_check.py`
first.
"""
