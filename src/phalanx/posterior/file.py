"""Archive of a posterior in one file, with the timing and the record of the run, which archives of fits hold too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.posterior.continuation import Continuation, FromFile
from phalanx.posterior.record import RunRecord, Timing
from phalanx.store.archive import Kind, read_archive, write_archive
from phalanx.store.save_path import NETCDF

Run = tuple[dict[str, Any], Timing, RunRecord]
"""Parts by name, timing and record."""

# version 2 holds no state to continue from
_KIND = Kind("posterior", "Posterior.load", "phalanx.posterior", (2, 3), ("draws", "stats", "reduced"))


WARMUP_PARTS = "warmup_draws", "warmup_stats"
"""Parts that are empty in a run without `save_warmup`, and that files of earlier releases do not have."""


def warmup_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the draws of warm-up and their statistics, by the name of the part."""
    return {name: parts.get(name, {}) for name in WARMUP_PARTS}


def write_run(file: Path, kind: Kind, parts: dict[str, Any], timing: Timing, record: RunRecord) -> Path:
    """Write the parts of a run's result, its timing and its record."""
    return write_archive(file, kind, parts, {"timing": asdict(timing), "record": asdict(record)})


def run_of(parts: dict[str, Any], entries: Mapping[str, Any]) -> Run:
    """Return the parts, timing and record that `write_run` wrote, from the contents of an archive."""
    return parts, Timing(**entries["timing"]), RunRecord.of_json(entries["record"])


def write_posterior(
    file: Path, parts: dict[str, Any], timing: Timing, record: RunRecord, continuation: Continuation | None
) -> Path:
    """Write the parts of a posterior, `draws`, `stats`, `reduced` and others, and its state; see `write_archive`."""
    # draws in a store are read here
    arrays = {"draws": parts["draws"], "stats": parts["stats"], **warmup_parts(parts)}
    host_arrays = {of: {name: np.asarray(values) for name, values in group.items()} for of, group in arrays.items()}
    state, contents = (None, {}) if continuation is None else (continuation.saved(), dict(continuation.contents()))
    return write_run(file, _KIND, {**parts, **host_arrays, "state": state, "contents": contents}, timing, record)


def read_posterior(path: Path) -> tuple[Run, Continuation | None]:
    """Read a posterior that `write_posterior` wrote.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file holds something else, is damaged, or was written by a later version.
    """
    if path.suffix.lower() == NETCDF and path.is_file():
        raise ValueError(
            f"Posterior.load: {path} is netCDF, which holds only draws and statistics: read it with "
            f"arviz.from_netcdf. Posterior.load reads .npz files."
        )
    run = read_archive(path, _KIND, _posterior_of)
    state = run[0].get("state")
    contents = run[0].get("contents", {})
    return run, None if state is None else FromFile(state, contents)


def _posterior_of(parts: dict[str, Any], entries: Mapping[str, Any]) -> Run:
    """Return a posterior after checking that its arrays agree in chains and draws; old files record no shapes."""
    sizes = {name: np.shape(array)[:2] for name, array in {**parts["draws"], **parts["stats"]}.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"its arrays differ in chains and draws: {', '.join(f'{k} {v}' for k, v in sizes.items())}")
    return run_of(parts, entries)
