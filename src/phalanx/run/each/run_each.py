"""`phx.mcmc(..., each=)`: divide the data, run a group of chains for each data set, and return the posteriors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from phalanx.language.tracing import Program
from phalanx.posterior.each.posteriors import Posteriors
from phalanx.posterior.each.stored_sets import Sets
from phalanx.programs.sites import Latent
from phalanx.run import checks
from phalanx.run.build import compile_sampler
from phalanx.run.each.data_sets import Each
from phalanx.run.each.kernel import kernel_of_each
from phalanx.run.each.model_on_sets import ModelOnSets
from phalanx.run.init_values import check_values
from phalanx.run.loop import Run
from phalanx.run.options import RunOptions, SamplerOptions
from phalanx.run.results import Clock, Data, RunResults
from phalanx.run.sampler import Sampler
from phalanx.run.state import RunState


def run_each(
    options: SamplerOptions, run: RunOptions, model: Program, data: object, each: Each, seed: int
) -> Posteriors:
    """Return the posteriors of many data sets; see `phx.mcmc`."""
    began = time.perf_counter()
    checks.check_alone(
        "each",
        missing=options.missing,
        tuning=run.tuning,
        until=run.until,
        checkpoint=run.checkpoint,
        save_warmup=run.save_warmup or None,
    )
    run.checked(options.num_chains, options.keep)
    evenly = run.store is not None
    on_sets = ModelOnSets.of_sets(model, data, each, options.mesh, options.names, evenly=evenly)
    assert on_sets.groups is not None
    kernel = kernel_of_each(options.kernel, on_sets.groups)
    init = _of_all(run.init, on_sets.whole.latents(), options.num_chains, on_sets.groups)
    stored_names, sentences = on_sets.stored(options)
    if not stored_names and not options.reducers:
        raise ValueError("keep: with an empty list a run has no result without reducers; name a variable or a reducer.")
    on_sets = replace(on_sets, notices=(*on_sets.notices, *sentences))
    sampler = compile_sampler(replace(options, kernel=kernel, keep=stored_names), run, on_sets, began)
    posteriors: Any = SamplerOfSets(**{**vars(sampler), "sets": Sets(on_sets.sets.names)}, on_sets=on_sets).run(
        seed, **{**vars(run), "init": init}
    )
    return posteriors


@dataclass(kw_only=True)
class SamplerOfSets(Sampler):
    """Sampler whose chains are those of many data sets, one data set after the other.

    Attributes:
        on_sets: the model on the data sets.
    """

    on_sets: ModelOnSets

    def _posterior(
        self, run: Run, data: Data, clock: Clock, samples: int, state: Callable[[], RunState], with_draws: bool = True
    ) -> Any:
        """Return the posteriors, without those of copies that fill up."""
        results = RunResults.of(run, with_draws)
        sets = self.on_sets.sets
        failures = run.engine.failed
        by_set: Any = self._by_set if run.store is None else Sets(sets.names).by_set
        record = replace(
            data.record,
            seed=run.state.seed,
            init=run.state.arguments.init,
            num_warmup=run.state.arguments.num_warmup,
            num_samples=samples,
            started=clock.started,
            interrupted=run.interrupted,
        )
        return Posteriors(
            draws=by_set(results.draws),
            stats=by_set(results.stats),
            sets=sets.names,
            failed={sets.names[n]: reason for n, reason in sorted(failures.items()) if n < sets.count},
            reduced=jax.tree.map(lambda leaf: leaf[: sets.count], dict(results.reduced)),
            timing=clock.timing(run, self.compile_seconds, self.compilations),
            record=record,
            target_of=lambda number: self.on_sets.target_of(number, record.num_chains),
        )

    def _by_set(self, of: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return arrays `(set, chain, draw, ...)`."""
        groups = self.executables.blocks.groups
        assert groups is not None
        return {name: v.reshape(groups, -1, *v.shape[1:])[: self.on_sets.sets.count] for name, v in of.items()}


def _of_all(init: Any, latents: Sequence[Latent], num_chains: int, sets: int) -> Any:
    """Return initial values for the chains of all data sets, given those of one."""
    if init is not None and not isinstance(init, Mapping):
        raise ValueError(
            f"init: with each= expected None or a dict of values by variable, with which the chains of each data set "
            f"start; got {init!r}."
        )
    check_values(init, latents, num_chains)
    each = {latent.name: (num_chains, *latent.shape) for latent in latents}
    return init and {
        name: np.concatenate([np.asarray(value)] * sets) if np.shape(value) == each[name] else value
        for name, value in init.items()
    }
