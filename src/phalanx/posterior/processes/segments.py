"""Files of draws in the folder of a run, each of the chains that a process owns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phalanx.mesh.chains import HeldChains
from phalanx.store.archive import Kind, read_archive, write_archive

DRAWS = Kind("file of draws", "checkpoint", "phalanx.draws", (1,), ("draws", "stats"))

Arrays = Mapping[str, np.ndarray]
"""Arrays `(chain, draw, ...)` by name."""


def write_draws(
    folder: Path, called: str, first: int, draws: Arrays, stats: Arrays, held: HeldChains | None
) -> list[Any]:  # fmt: skip
    """Write the draws of the chains that this process owns to a file, and return its entry; none without draws.

    Args:
        folder: the folder.
        called: beginning of the file's name.
        first: number of draws of each chain in earlier files, which are left out.
        draws: all draws so far, of the chains that this process holds.
        stats: their statistics.
        held: the chains that each process holds; None if there are no other processes.

    Raises:
        OSError: when the disk is full or cannot be written.
    """
    chains, length = sizes(stats)
    runs = [[0, chains]] if held is None else [[run.start, run.stop] for run in held.owned_runs]
    if not runs or length <= first:
        return []
    rows = slice(None) if held is None or held.writes.all() else held.writes
    new = {
        of: {name: values[rows, first:] for name, values in arrays.items()}
        for of, arrays in (("draws", draws), ("stats", stats))
    }
    name = f"{called}.npz" if held is None else f"{called}-chains-{runs[0][0]}.npz"
    write_archive(folder / name, DRAWS, new, {})
    return [[name, first, runs]]


def sizes(stats: Arrays) -> tuple[int, int]:
    """Return the number of chains that statistics have, and of draws of each; zeros without statistics."""
    return next((values.shape[:2] for values in stats.values()), (0, 0))


def merged_from(entries: Sequence[Any], count: int, least: int, now: int) -> int:
    """Return the number of draws of each chain in files that stay; later ones are written again with new draws.

    A file stays if it has at least twice the draws of the file that follows it. The number of files therefore grows by
    the logarithm of the number of draws, and so does the number of times that a draw is written.

    Args:
        entries: entries of the files.
        count: draws of each chain in the files.
        least: number of the first draw in the files that may be merged.
        now: draws of each chain that the run has made.
    """
    first = count
    for start in sorted({entry[1] for entry in entries if not isinstance(entry, str)}, reverse=True):
        if start < least or 2 * (now - first) <= first - start:
            break
        first = start
    return first


def read_draws(folder: Path, entries: Sequence[Any], held: HeldChains | None) -> dict[str, dict[str, np.ndarray]]:
    """Return draws and statistics by name: of the chains that this process holds, of all if `held` is None.

    Raises:
        ValueError: when files are damaged, or do not have each draw once.
    """
    parts, end = [], 0
    for entry in entries:
        runs = [] if isinstance(entry, str) else entry[2]
        if held is not None and runs and not any(np.any((held.numbers >= a) & (held.numbers < b)) for a, b in runs):
            continue
        arrays = read_archive(folder / file_of(entry), DRAWS, _arrays_of)
        (chains, length), *others = {
            np.shape(values)[:2] for of in ("draws", "stats") for values in arrays[of].values()
        }
        if others or (runs and chains != sum(b - a for a, b in runs)):
            raise ValueError(f"{file_of(entry)} has other chains or draws than its entry says")
        first = end if isinstance(entry, str) else entry[1]  # files of earlier releases follow one another
        end = first + length
        numbers = np.concatenate([np.arange(a, b) for a, b in runs or [[0, chains]]])
        parts.append(_Part(first, end, numbers, arrays))
    if entries and not parts:
        raise ValueError("no file has draws of the chains of this process")
    if not parts:
        return {"draws": {}, "stats": {}}
    count = max(part.end for part in parts)
    if held is None:
        # entries may claim any number: arrays are allocated for draws that files have
        chains = 1 + max(int(part.numbers[-1]) for part in parts)
        _check_number(sum(len(part.numbers) * (part.end - part.first) for part in parts), chains, count)
        wanted = np.arange(chains)
    else:
        wanted = held.numbers
        there = sum(int(np.isin(wanted, part.numbers).sum()) * (part.end - part.first) for part in parts)
        _check_number(there, len(wanted), count)
    return _together(parts, wanted, count)


class _Part(NamedTuple):
    """Draws `first` to `end` of the chains `numbers`."""

    first: int
    end: int
    numbers: np.ndarray
    arrays: Mapping[str, Arrays]


def _check_number(there: int, chains: int, count: int) -> None:
    if there != chains * count:
        raise ValueError(f"they have {there} draws, and {chains} chains of {count} are expected")


def _together(parts: Sequence[_Part], wanted: np.ndarray, count: int) -> dict[str, dict[str, np.ndarray]]:
    """Return the draws of the wanted chains, after checking that each is there once."""
    made = np.zeros((len(wanted), count), bool)
    found = {of: _empty(parts[0].arrays[of], (len(wanted), count)) for of in ("draws", "stats")}
    for first, end, numbers, arrays in parts:
        rows = np.flatnonzero(np.isin(wanted, numbers))
        taken = np.searchsorted(numbers, wanted[rows])
        made[rows, first:end] = True
        for of, into in found.items():
            if set(arrays[of]) != set(into):
                raise ValueError("they have different variables")
            for name, values in arrays[of].items():
                into[name][rows, first:end] = values[taken]
    if not made.all():
        raise ValueError("some draws are there twice, and others are missing")
    return found


def _empty(arrays: Arrays, leading: tuple[int, int]) -> dict[str, np.ndarray]:
    return {name: np.empty((*leading, *values.shape[2:]), values.dtype) for name, values in arrays.items()}


def file_of(entry: Any) -> str:
    """Return the file that an entry of a manifest names; empty unless it is an entry of a file of draws."""
    match entry:
        case str():
            return entry
        case [str(file), int(first), [_, *_] as runs] if first >= 0:
            ends = [end for run in runs if isinstance(run, list) and len(run) == 2 for end in run]
            are_numbers = len(ends) == 2 * len(runs) and all(isinstance(end, int) for end in ends)
            if are_numbers and ends[0] >= 0 and all(a < b for a, b in pairwise(ends)):
                return file
    return ""


def _arrays_of(parts: dict[str, Any], _: Mapping[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """Return the parts of a file of draws after checking that they are arrays by name."""
    for name, array in {**parts["draws"], **parts["stats"]}.items():
        if np.ndim(array) < 2:
            raise ValueError(f"{name!r} has no chains and draws")
    if not {**parts["draws"], **parts["stats"]}:
        raise ValueError("there are no draws")
    return parts
