"""Headline workloads, one file each: model, data, run, pictures. `phalanx demo NAME` runs one.

`DemoOptions` come in; printed results and a folder with report, pictures and `result.json` come out. Read `chains.py`
first, the shortest.
"""
