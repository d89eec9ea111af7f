"""A fit whose programs are compiled: its method, chosen by guide and optimiser, at the first parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jax import Array

from phalanx.learning.compiled import Compiler
from phalanx.learning.loop import Loop
from phalanx.run.progress.display import make_progress, waiting
from phalanx.run.progress.watchdog import watched
from phalanx.variational import checks
from phalanx.variational.data_checks import DataChecks
from phalanx.variational.guides.guide_and_model import for_steps
from phalanx.variational.guides.learned import Params
from phalanx.variational.methods.fixed_draws import FixedDraws
from phalanx.variational.methods.growing import Growing
from phalanx.variational.methods.matching import FIRST_MATCHES, match_scores
from phalanx.variational.methods.method import FitError, FitMethod, Solved
from phalanx.variational.methods.optimizer import steps_of
from phalanx.variational.methods.settling import Settling
from phalanx.variational.methods.step import FitState, Steps
from phalanx.variational.methods.stochastic import Stochastic
from phalanx.variational.monitoring.stream import on_host
from phalanx.variational.options import FitOptions
from phalanx.variational.result import Fit, FitOutcome
from phalanx.variational.start import FirstParameters
from phalanx.variational.traced_fit import TracedFit

UNTOUCHED = "The fit made no steps and did not check whether the parameters still change."
"""Why a fit without steps is not settled."""


@dataclass(frozen=True)
class CompiledFit:
    """A fit at its first parameters.

    Attributes:
        options: the arguments.
        method: the way to fit.
        loop: the loop over the blocks of the method, at its first state.
        arrays: the data on the mesh; of data that come in batches the first batch.
        values: function from parameters on the real line to their values.
        compiler: the compiler, which counts its programs.
        notices: sentences to show before the fit.
    """

    options: FitOptions
    method: FitMethod[Any]
    loop: Loop[Any]
    arrays: tuple[Array, ...]
    values: Callable[[Params], dict[str, Any]]
    compiler: Compiler
    notices: tuple[str, ...]

    @classmethod
    def of(cls, traced_fit: TracedFit, options: FitOptions) -> CompiledFit:
        """Check the values of the data, compile, and compute the first parameters.

        Raises:
            ValueError: when data or initial values are not valid; the message names variable or parameter.
        """
        pair = traced_fit.pair
        stream = traced_fit.stream
        problem = pair.problem
        compiler = Compiler(options.matmul_precision, problem.mesh)
        data_checks = DataChecks(pair, compiler)
        unseen = data_checks.unseen(problem.arguments)
        problem.check_function()
        problem.check_finite()
        arrays = problem.place_arrays() if stream is None else stream.place_first_batch(problem, data_checks)
        with waiting(options.progress, "compiling"):
            host_arrays = arrays if stream is None else on_host(problem.arguments)
            continues = options.num_steps > 0
            first = FirstParameters.of(pair, compiler, options.seed, arrays, options.init, continues=continues)
            checks.check_found(pair, first.given, options.num_steps)
            data_checks.compile_for(host_arrays, once=stream is None)
            method = _method(traced_fit, options, first.shapes, arrays, compiler)
            values = first.values_from(compiler)
            data_checks.check(problem.arguments, host_arrays)
            loop = Loop(method, method.init(first() if continues else first.as_given()))
            loop.saves = method.saves if isinstance(method, Stochastic) else None
        return cls(options, method, loop, arrays, values, compiler, (*traced_fit.notices, *unseen))

    def learn(self) -> tuple[FitOutcome, FitError | None]:
        """Run the method; return what it has learned, and the error that has ended it, if one has."""
        loop = self.loop
        fit_error = None
        try:
            run_to_end(loop, self.notices, self.options)
        except FitError as error:
            fit_error = error
            loop.stopped = None
        outcome = self.method.outcome(loop.state, loop.stopped)
        if fit_error is not None and fit_error.free is not None:
            outcome = outcome._replace(free=fit_error.free, last=None)
        return outcome, fit_error


def run_to_end(loop: Loop[Any], notices: Sequence[str], options: FitOptions) -> None:
    """Run a loop to its end, after showing some sentences."""
    with watched(make_progress(options.progress)) as display:
        for sentence in notices:
            display.say(sentence)
        # a deque exhausts the loop without Python code between two blocks, where Ctrl-C would escape the loop
        deque(loop.blocks(display, options.callbacks, options.seconds), maxlen=0)


def _method(
    traced_fit: TracedFit, options: FitOptions, shapes: dict[str, Any], arrays: tuple[Array, ...], compiler: Compiler
) -> FitMethod[Any]:
    """Return the method: steps, each with fresh draws, climbs with fixed draws, or no steps."""
    pair = traced_fit.pair
    first_batch = options.init.seen if isinstance(options.init, Fit) else 0
    seed = np.uint32(options.seed)
    if options.num_steps == 0:
        return Solved(first_batch, UNTOUCHED)
    if pair.guide.traits.is_solved:
        return Solved()
    if isinstance(options.optimizer, str) and options.optimizer == checks.LBFGS:
        fixed_draws = FixedDraws.of(pair, options.num_particles)
        return Growing(fixed_draws, seed, arrays, options.num_steps, options.stops, compiler)
    if isinstance(options.optimizer, str) and options.optimizer == checks.BATCH_AND_MATCH:
        matching = Steps(pair, options.objective, None, options.num_particles, match_scores)
        settling = Settling.at_first_window(options.num_steps, options.stops, FIRST_MATCHES)
        begins = partial(FitState.of, optimizer=())
        return Stochastic(matching, begins, shapes, seed, arrays, 1.0, settling, compiler, averages=options.averages)
    steps, rate, falls = steps_of(
        for_steps(pair), options.objective, options.optimizer, options.num_particles, options.num_steps, shapes
    )
    return Stochastic(
        steps,
        partial(steps.init_state, averages=options.averages or options.stops),
        shapes,
        seed,
        arrays,
        rate,
        Settling.at_first_window(options.num_steps, options.stops),
        compiler,
        traced_fit.stream,
        falls,
        options.training,
        options.policy,
        first_batch=first_batch,
        averages=options.averages,
    )
