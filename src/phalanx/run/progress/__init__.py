"""Progress display of runs and fits.

In: a `Report` after each block, and lines of text. Out: a live line on a terminal (`live.py`), an output that is
replaced in a notebook, plain lines elsewhere (`display.py`); and a warning if no block ends (`watchdog.py`). Read
`report.py` first.
"""
