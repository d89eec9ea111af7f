"""Kernels of a run on many data sets, which have a step size and a metric for each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from phalanx.adaptation.metric import Metric
from phalanx.adaptation.step_size import StepSize
from phalanx.adaptation.tuner import Tuner
from phalanx.kernels.protocol.kernel import Kernel


def kernel_of_each(kernel: Kernel, sets: int) -> Kernel:
    """Return a kernel whose step size and metric are those of each data set.

    Raises:
        ValueError: when a hyperparameter that is tuned, a metric that is given, or a centring cannot be that of each
            data set.
    """
    if kernel.centring is not None:
        raise ValueError(
            f"kernel: {kernel.name} learns a centring from the draws of all chains, and the chains of a run on many "
            f"data sets have other posteriors. Leave out centring=; or leave out each=, and run phx.mcmc on one data "
            f"set after the other."
        )
    step_size = getattr(kernel.tuning, "step_size", None)
    tuners = [tuner for tuner in kernel.tuners if not isinstance(tuner, Metric | StepSize)]
    has_metric = getattr(kernel.tuning, "metric", None) is not None
    if step_size is None or tuners or has_metric or not kernel.machine.knows_mesh or kernel.batch_size is not None:
        raise ValueError(
            f"kernel: {kernel.name} cannot run on many data sets at once, since each needs a step size and a diagonal "
            f"metric of its own. Take phx.nuts(), phx.hmc(num_steps=...) or phx.rwmh(); or leave out each=, and run "
            f"phx.mcmc on one data set after the other."
        )
    return replace(
        kernel,
        tuning=kernel.tuning._replace(step_size=np.broadcast_to(np.asarray(step_size), (sets,)).copy()),
        tuners=tuple(map(_of_each, kernel.tuners)),
        relocates=False,
    )


def _of_each(tuner: Tuner) -> Tuner:
    if not isinstance(tuner, Metric):
        return tuner
    if tuner.kind == "dense":
        raise ValueError(
            'kernel: metric="dense" cannot be learned for many data sets at once. Take metric="diagonal", or leave out '
            "each=, and run phx.mcmc on one data set after the other."
        )
    return replace(tuner, kind="diagonal")
