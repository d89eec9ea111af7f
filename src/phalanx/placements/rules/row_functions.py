"""Rule of functions of rows, which are called on local arrays: sums over rows become partial sums."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.core import JaxprEqn

from phalanx.placements.placement import PARTIAL, REPLICATED, Placement, is_sharded
from phalanx.placements.row_functions import RowFunction
from phalanx.placements.rules.table import Mask, Plan


def function_plan(function: RowFunction, equation: JaxprEqn, placements: Sequence[Placement]) -> Plan:
    """Return the plan of a function of rows along one mesh axis."""
    of_batch = [at is not None and at == dim for at, dim in zip(placements, function.batch, strict=False)]
    if any(of_batch):
        return Plan([REPLICATED if dim is None else dim for dim in function.batch], [0] * len(equation.outvars))
    others = [REPLICATED] * (len(placements) - function.rows)
    results = len(equation.outvars)
    of_rows = placements[: function.rows]
    if function.adds_entries and any(at != REPLICATED for at in of_rows):
        needs = [PARTIAL if at == REPLICATED else at for at in of_rows]
        masks = [Mask(number, at) for number, at in enumerate(of_rows) if is_sharded(at)]
        return Plan([*needs, *others], [PARTIAL] * results, masks)
    if not function.adds_entries and 0 in of_rows:
        return Plan([*[0] * function.rows, *others], [*[PARTIAL] * function.sums, *[0] * (results - function.sums)])
    return Plan([REPLICATED] * len(placements), [REPLICATED] * results)
