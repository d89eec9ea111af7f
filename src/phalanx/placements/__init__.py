"""A program traced once on whole arrays, evaluated on each device's rows.

In: a closed jaxpr over whole arrays, and the placement of each input on a mesh. Out: a function of one device's parts
of the inputs, for use under `shard_map`. Every program is right on every mesh and any number of rows: a primitive
without a rule for the placements it meets gets replicated operands, and only costs more communication.

A value has one placement for each mesh axis (`placement.py`). `rules/` holds one rule for each primitive: the
placements that it needs, and those of its results. `interpreter.py` follows a program by them, `control_flow.py` its
loops and branches. Read `placement.py` first, then `rules/table.py`, then `program.py`.
"""

from phalanx.placements.device_rows import DeviceRows
from phalanx.placements.over_mesh import over_mesh
from phalanx.placements.placement import PARTIAL, REPLICATED, Placement
from phalanx.placements.program import Message, PlacedProgram, pad_rows
from phalanx.placements.row_functions import add_together, divide

__all__ = [
    "PARTIAL",
    "REPLICATED",
    "DeviceRows",
    "Message",
    "PlacedProgram",
    "Placement",
    "add_together",
    "divide",
    "over_mesh",
    "pad_rows",
]
