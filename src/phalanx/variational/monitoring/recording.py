"""Record of a fit, in the form of a run's."""

from __future__ import annotations

from phalanx.density.imputation import names_of_missing
from phalanx.density.labels import LabelSearch
from phalanx.inputs.known_data import names_of, scalars_of
from phalanx.posterior.record import RunRecord
from phalanx.run.describe import data_words, source_of, versions
from phalanx.variational.guides.pair import Pair, alignment_of
from phalanx.variational.objective import Objective


def record_of(
    pair: Pair, objective: Objective, num_steps: int, num_particles: int, seed: int, started: str, interrupted: bool
) -> RunRecord:
    """Return the record of a fit; `num_warmup` is its greatest number of steps."""
    problem, arguments, name = pair.problem, pair.problem.arguments, pair.guide.name
    labels = LabelSearch.of(problem.whole).names(arguments) if any(arguments.labels) else {}
    return RunRecord(
        model=getattr(problem.model, "__name__", type(problem.model).__name__),
        kernel=f"fit({name}, {objective.name})" if pair.guide.traits.has_draws else name,
        num_chains=1,
        num_warmup=int(num_steps),
        num_samples=0,
        seed=seed,
        mesh={axis: int(size) for axis, size in problem.mesh.shape.items()},
        devices=[str(device) for device in problem.mesh.devices.flat],
        data=data_words(arguments),
        latents=dict(alignment_of(pair).described),
        versions=versions(),
        init="random",
        started=started,
        interrupted=interrupted,
        source=source_of(problem.model),
        labels=labels | names_of_missing(problem.model, arguments),
        names=names_of(arguments, labels),
        scalars=scalars_of(arguments),
    )
