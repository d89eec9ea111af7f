"""Phases of a run: warm-up (`warm_up.py`), then draws that are stored (`store.py`) or only reduced (`reduce.py`).

`streaming.py` hands over the blocks of a stream, whose draws these phases make.

In: the state of a run, with the draws of the last block in its sinks. Out: the number of draws of the next block
(`BlockGoal`), the next state, and figures for the progress display. `phalanx.run.loop` runs one phase after the other.
Read `phase.py` first.
"""
