"""Phases of a run: warm-up, then draws that are stored or folded.

A phase says what the next block is to draw, and makes the next state of the run from what the block left in the sinks.
The loop, `phalanx.run.loop`, runs one phase after the other. Read `phase.py` first.
"""
