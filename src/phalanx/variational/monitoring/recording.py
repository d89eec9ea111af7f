"""What was fitted where: the record of a fit, in the form of a run's."""

from __future__ import annotations

from phalanx.density.labels import LabelSearch
from phalanx.inputs.known_data import names_of, scalars_of
from phalanx.posterior.record import RunRecord
from phalanx.run.describe import data_words, source_of, versions
from phalanx.variational.guides.pair import Pair
from phalanx.variational.objective import Objective


def record_of(
    pair: Pair, objective: Objective, num_steps: int, num_particles: int, seed: int, started: str, interrupted: bool
) -> RunRecord:
    """The record of a fit. `num_warmup` are its steps at most, `num_chains` its particles."""
    problem, arguments = pair.problem, pair.problem.arguments
    labels = LabelSearch.of(problem.whole).names(arguments) if any(arguments.labels) else {}
    return RunRecord(
        model=getattr(problem.model, "__name__", type(problem.model).__name__),
        kernel=f"fit({pair.name}, {objective.name})" if pair.has_draws else pair.name,
        num_chains=1,
        num_warmup=int(num_steps),
        num_samples=0,
        seed=seed,
        mesh={axis: int(size) for axis, size in problem.mesh.shape.items()},
        devices=[str(device) for device in problem.mesh.devices.flat],
        data=data_words(arguments),
        latents=dict(pair.alignment.described),
        versions=versions(),
        init="random",
        started=started,
        interrupted=interrupted,
        source=source_of(problem.model),
        labels=labels,
        names=names_of(arguments, labels),
        scalars=scalars_of(arguments),
    )
