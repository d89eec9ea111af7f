"""Reducers: statistics of draws in constant memory, as `init`, `update`, `merge`, `finalize`: `phx.reducers`.

In: draws of all lanes, inside the compiled block. Out: states of constant size, merged on the host in float64, and
their results, `posterior.reduced`. Read `reducer.py` first, then `moments.py`.
"""

from __future__ import annotations

from phalanx.reducers.autocovariance import autocovariance
from phalanx.reducers.covariance import covariance
from phalanx.reducers.ess import ess
from phalanx.reducers.histogram import histogram
from phalanx.reducers.loo import loo
from phalanx.reducers.moments import extremes, moments, rhat
from phalanx.reducers.reducer import Reducer, reduce
from phalanx.reducers.reservoir import reservoir
from phalanx.reducers.sketch import quantiles
from phalanx.reducers.thinned import thinned

__all__ = [
    "Reducer",
    "autocovariance",
    "covariance",
    "ess",
    "extremes",
    "histogram",
    "loo",
    "moments",
    "quantiles",
    "reduce",
    "reservoir",
    "rhat",
    "thinned",
]
