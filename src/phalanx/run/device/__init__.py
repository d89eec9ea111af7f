"""The compiled blocks of a run, and the sinks that draws go into on the devices.

`advance.py` moves chains tick by tick; `sink.py` says what a sink is; `recorder.py`, `reducing.py` and `tally.py` are
sinks. Read `advance.py` first.
"""
