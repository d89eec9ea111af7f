"""Processing of draws on the host after each block.

In: sinks of a block on the devices. Out: stored draws (`draw_buffer.py`), merged states of reducers
(`reducer_state.py`), draws in a Zarr store (`draw_store.py`) or of a warm-up window (`window.py`), and states that
depend on no mesh (`unshard.py`, `recorded.py`). Read `draw_buffer.py` first.
"""
