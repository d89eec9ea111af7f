"""Monitoring of long fits: held-out evaluation, log and checkpoint, and data that come in batches.

In: a fit's steps, its options (`phx.training`) and its data. Out: evaluations (looks), a CSV file, a folder
that the same call resumes, batches on the devices. `learning/watch.py` is the part that ensembles share. Read
`watching.py` first.
"""
