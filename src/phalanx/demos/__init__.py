"""Headline workloads, one file each: model, data, run, pictures. `phalanx demo NAME` runs one.

In: `DemoOptions`. Out: printed results, and a folder with a report, pictures and `result.json`. Read `chains.py` first,
the shortest.
"""
