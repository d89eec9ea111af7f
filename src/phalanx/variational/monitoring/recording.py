"""Record of a fit, in the form of a run's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.density.given_names import Coords, Dims, GivenNames
from phalanx.density.naming import Naming
from phalanx.posterior.record import RunRecord
from phalanx.run.describe import data_words, names_in_record, source_of, versions
from phalanx.variational.guides.guide_and_model import Pair, alignment_of
from phalanx.variational.objective import Objective
from phalanx.variational.problem import Problem


def record_of(
    pair: Pair,
    objective: Objective,
    num_steps: int,
    seed: int,
    start_time: str,
    is_interrupted: bool,
    names: Mapping[str, Any],
    matmul_precision: str = "float32",
) -> RunRecord:
    """Return the record of a fit; `num_warmup` is its greatest number of steps, and `names` come from `names_for`."""
    problem = pair.problem
    arguments = pair.problem.arguments
    name = pair.guide.name
    return RunRecord(
        model=getattr(problem.program, "__name__", type(problem.program).__name__),
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
        matmul_precision=matmul_precision,
        init="random",
        started=start_time,
        interrupted=is_interrupted,
        source=source_of(problem.program),
        **names,
    )


def names_for(problem: Problem, dims: Dims | None = None, coords: Coords | None = None) -> dict[str, Any]:
    """Return the fields of a fit's record that name axes, levels and columns; see `names_in_record`."""
    arguments = problem.arguments
    return names_in_record(Naming.of(problem.whole, arguments, GivenNames.of(dims, coords)), arguments)
