"""A posterior in one file, and what archives of posteriors and fits share: the timing and the record of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.posterior.record import RunRecord, Timing
from phalanx.store.archive import Kind, read_archive, write_archive
from phalanx.store.save_path import NETCDF

Run = tuple[dict[str, Any], Timing, RunRecord]
"""Parts by name, the timing and the record."""

# files of version 2 have no state from which to go on
_KIND = Kind("posterior", "Posterior.load", "phalanx.posterior", (2, 3), ("draws", "stats", "reduced"))


def write_run(file: Path, kind: Kind, parts: dict[str, Any], timing: Timing, record: RunRecord) -> Path:
    """Write the parts of a run's result, the seconds of each phase, and what was run."""
    return write_archive(file, kind, parts, {"timing": asdict(timing), "record": asdict(record)})


def run_of(parts: dict[str, Any], entries: Mapping[str, Any]) -> Run:
    """Return what `write_run` was given, of what an archive holds."""
    return parts, Timing(**entries["timing"]), RunRecord.of_json(entries["record"])


def write_posterior(file: Path, parts: dict[str, Any], timing: Timing, record: RunRecord) -> Path:
    """Write the parts of a posterior, `draws`, `stats`, `reduced` and others; see `write_archive`."""
    return write_run(file, _KIND, parts, timing, record)


def read_posterior(path: Path) -> Run:
    """Read what `write_posterior` wrote.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when the file is something else, damaged, or written by a later version.
    """
    if path.suffix.lower() == NETCDF and path.is_file():
        raise ValueError(
            f"Posterior.load: {path} is netCDF, which has the draws and statistics alone: read it with "
            f"arviz.from_netcdf. What can be loaded is saved as .npz."
        )
    return read_archive(path, _KIND, _posterior_of)


def _posterior_of(parts: dict[str, Any], entries: Mapping[str, Any]) -> Run:
    """Check that all draws and statistics are of the same chains and draws; files of old say no shapes."""
    sizes = {name: np.shape(array)[:2] for name, array in {**parts["draws"], **parts["stats"]}.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"its arrays differ in chains and draws: {', '.join(f'{k} {v}' for k, v in sizes.items())}")
    return run_of(parts, entries)
