"""Run on many data sets in progress: data sets without a start are set aside, warm-up is that of each data set."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array

from phalanx.adaptation.metric import Metric
from phalanx.adaptation.step_size import StepSize
from phalanx.adaptation.tuner import Sums, Tuner
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.mesh.processes import to_host
from phalanx.run.device.blocks import ChainState
from phalanx.run.each.blocks import EachBlocks, EachTarget
from phalanx.run.engine import Engine
from phalanx.run.init_values import Initial
from phalanx.run.loop import Run
from phalanx.run.phases.warm_up import WarmUpPhase
from phalanx.run.state import Aim, WarmingState

if TYPE_CHECKING:
    from jaxtyping import Integer


class EachEngine(Engine):
    """Engine of a run on many data sets, some of which may have no chain that can start."""

    failed: dict[int, str]

    def begin(self, initial: Initial) -> tuple[ChainState, Sums]:
        """Return chains at their initial positions; a data set without one takes part with the data of another."""
        begun = self.executables.start(self.seed, self.arrays, initial)
        initial.check(begun.misfits)
        self.failed = self._failed(begun.finite, begun.invalid)
        if self.failed:
            self.arrays = self._without_failed()
            begun = self.executables.start(self.seed, self.arrays, initial)
        rows = begun.rows
        return begun.chains, self.executables.summed(rows, 0, 1) if rows else self.blocks.no_sums()

    def _failed(self, finite: Array, invalid: Any) -> dict[int, str]:
        assert isinstance(self.blocks, EachBlocks)
        by_set = self.blocks.sets, self.blocks.chains_of_one
        bad = ~to_host(finite).reshape(by_set).all(1)
        reasons = {
            int(number): "the log density, or its gradient, is not finite at the start"
            for number in np.flatnonzero(bad)
        }
        for (name, parameter), counts in invalid.items():
            found = to_host(counts).reshape(by_set)[:, 0]
            what = f"the parameter {parameter!r} of {name!r}" if parameter else f"a value of {name!r}"
            reasons |= {int(number): f"{what} is not valid" for number in np.flatnonzero(found)}
        return reasons

    def _without_failed(self) -> tuple[Array, ...]:
        """Return the arrays, where data sets that failed have the data of one that did not."""
        target, sets = self.blocks.target, self.blocks.sets  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(target, EachTarget)
        source = np.arange(sets)
        good = np.setdiff1d(source, list(self.failed))
        if not len(good):
            raise ValueError(
                f"each: none of the {sets:,} data sets can be sampled; of the first, {self.failed[0]}. Run phx.mcmc on "
                f"it alone to see more."
            )
        source[list(self.failed)] = good[0]
        take = jax.jit(lambda array: array[source])
        return tuple(
            jax.device_put(take(array), array.sharding) if number in target.own else array
            for number, array in enumerate(self.arrays)
        )


class EachWarmUpPhase(WarmUpPhase):
    """Phase in which tuners learn hyperparameters of each data set.

    When a window begins, data sets need different times to find a step size; those that have one wait.
    """

    def _due(self, warming: WarmingState) -> Integer[np.ndarray, "chains"]:
        searching = self._warm_up.searching_sets(warming.schedule)
        due = np.where(searching, warming.goal, 0) if np.any(searching) else np.asarray(warming.goal)
        num_chains = self._engine.blocks.num_chains
        return np.repeat(due, num_chains // due.size)


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
    given = getattr(kernel.tuning, "metric", None) is not None
    if step_size is None or tuners or given or not kernel.machine.knows_mesh or kernel.batch_size is not None:
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


class EachRun(Run):
    """Run on many data sets in progress."""

    engine_of = EachEngine
    engine: EachEngine

    def _warm_up_phase(self, aim: Aim) -> EachWarmUpPhase:
        return EachWarmUpPhase(self.engine, self.kernel, aim.num_warmup)
