"""Folds over draws in constant memory: `init`, `update`, `merge`, `finalize`."""

from __future__ import annotations

from phalanx.reducers.autocovariance import autocovariance
from phalanx.reducers.covariance import covariance
from phalanx.reducers.ess import ess
from phalanx.reducers.histogram import histogram
from phalanx.reducers.moments import extremes, moments
from phalanx.reducers.reducer import Reducer, reduce
from phalanx.reducers.rhat import rhat
from phalanx.reducers.sketch import quantiles, reservoir
from phalanx.reducers.thinned import thinned

__all__ = [
    "Reducer", "autocovariance", "covariance", "ess", "extremes", "histogram", "moments", "quantiles", "reduce",
    "reservoir", "rhat", "thinned",
]  # fmt: skip
