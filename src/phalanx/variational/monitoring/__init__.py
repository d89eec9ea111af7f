"""Monitoring of long fits: held-out evaluation, log and checkpoint, and data that come in batches.

In: a fit's steps, its options (`phx.training`) and its data. Out: looks, a CSV file, a folder that the same call
resumes, batches on the devices. The part that ensembles share is `learning/watch.py`. Read `watching.py` first.
"""
