"""What was fitted where: the record of a fit, in the form of a run's."""

from __future__ import annotations

from phalanx.posterior.record import RunRecord
from phalanx.run.describe import source_of, versions, where_words
from phalanx.variational.likelihood import Likelihood
from phalanx.variational.objective import Objective
from phalanx.variational.pair import Pair


def record_of(
    pair: Pair, objective: Objective, num_steps: int, num_particles: int, seed: int, started: str, interrupted: bool
) -> RunRecord:
    """The record of a fit. `num_warmup` are its steps at most, `num_chains` its particles."""
    problem = pair.problem
    known = zip(problem.arguments.names, problem.arguments.whole_shapes(), problem.arguments.shardings, strict=True)
    return RunRecord(
        model=getattr(problem.model, "__name__", type(problem.model).__name__),
        kernel=pair.name if isinstance(pair, Likelihood) else f"fit({pair.name}, {objective.name})",
        num_chains=1,
        num_warmup=int(num_steps),
        num_samples=0,
        seed=seed,
        mesh={axis: int(size) for axis, size in problem.mesh.shape.items()},
        devices=[str(device) for device in problem.mesh.devices.flat],
        data={name: f"{s.dtype} {s.shape}{where_words(sharding)}" for name, s, sharding in known},
        latents=pair.described(),
        versions=versions(),
        init="random",
        started=started,
        interrupted=interrupted,
        source=source_of(problem.model),
    )
