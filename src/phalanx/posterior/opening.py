"""Opening of whatever a run has saved: a store of draws, a checkpoint, or a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.diagnostics.exchange import ARVIZ_NAMES
from phalanx.posterior.each.stored_sets import EACH, Sets
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord, Timing
from phalanx.store.lazy_array import StoredArray
from phalanx.store.zarr_reading import entry_of, is_zarr, read_warm_up, read_zarr

Stored = Mapping[str, StoredArray]
"""Arrays of a store by name."""


def open(path: str | PathLike[str]) -> Posterior:
    """Open what a run has saved, also while it goes on.

    Args:
        path: the folder of `store=`, whose draws are read when they are used; or the folder of `checkpoint=`, or a
            file of `posterior.save`, which are read here.

    Returns:
        A `phx.Posterior`, or of a run with `each=` a `phx.Posteriors`: of a run that goes on, with the draws that were
        committed so far, and with `record.interrupted=True`. Results of reducers are in checkpoints and files, and not
        in stores.

    Raises:
        FileNotFoundError, ValueError: if the path does not exist, holds something else, or is damaged.
        ImportError: if zarr is not installed and the path is a store.

    Example:
        >>> import phalanx as phx
        >>> phx.open("run.zarr").num_draws  # doctest: +SKIP
        1000
    """
    folder = Path(path)
    if not folder.exists():
        raise FileNotFoundError(f"open: {str(path)!r} does not exist.")
    if not is_zarr(folder):
        return Posterior.load(path)
    title = f"open: {str(path)!r}"
    draws, stats, entries = read_zarr(folder, title)
    of_warmup = read_warm_up(folder, title)
    try:
        names = entry_of(entries["names"])
        record = RunRecord.of_json(entry_of(entries["record"]))
        timing = Timing(**entry_of(entries["timing"]))
        course = entry_of(entries["warmup"])
        warmup = {name: np.array(values) for name, values in course.items()}
        record = replace(record, interrupted=not entries["complete"])
        draws, stats = in_our_names(draws, stats, names)
        if EACH in entries:
            return _of_sets(draws, stats, timing, record, Sets.of(entries))
        of_warmup = in_our_names(*of_warmup, names)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{title} is damaged: its entries cannot be read ({error!r}).") from error
    warmup_parts = {"warmup": warmup, "warmup_draws": of_warmup[0], "warmup_stats": of_warmup[1]}
    return Posterior(draws, stats, timing, record, **warmup_parts)  # pyright: ignore[reportArgumentType]


def _of_sets(draws: Stored, stats: Stored, timing: Timing, record: RunRecord, sets: Sets) -> Any:
    """Return the posteriors of many data sets."""
    from phalanx.posterior.each.posteriors import Posteriors  # which few use

    failures = {sets.names[number]: reason for number, reason in sorted(sets.failed.items())}
    return Posteriors(sets.by_set(draws), sets.by_set(stats), sets.names, failures, {}, timing, record)


def in_our_names(draws: Stored, stats: Stored, names: Mapping[str, str]) -> tuple[Stored, Stored]:
    """Return draws and statistics of a store by their names in Phalanx; `names` are those of variables in the store.

    Raises:
        ValueError: when a variable is missing.
    """
    if draws and (absent := [repr(name) for stored_name, name in names.items() if stored_name not in draws]):
        raise ValueError(f"the store has lost {', '.join(absent)}")
    ours = {theirs: name for name, theirs in ARVIZ_NAMES.items()}
    return (
        {name: draws[stored_name] for stored_name, name in names.items() if draws},
        {ours.get(name, name): values for name, values in stats.items()},
    )
