"""Folder of a run under way: its draws in files that never change, and after each save the state to continue from.

A save adds the draws since the save before, in one file of each process that owns chains, and a posterior of the run so
far without draws. The file replaces the last ones if it has about as many draws, so that there are few of them. Any
number of processes continues from it: each reads the files with draws of its own chains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phalanx.mesh.chains import HeldChains
from phalanx.posterior.continuation import Continuation
from phalanx.posterior.file import WARMUP_PARTS, Run, read_posterior, warmup_parts, write_posterior
from phalanx.posterior.record import RunRecord, Timing
from phalanx.store.archive import Kind, read_archive, write_archive
from phalanx.store.saves import Damage, Saves, is_manifest
from phalanx.store.sealed import is_file_inside

DRAWS = Kind("file of draws", "checkpoint", "phalanx.draws", (1,), ("draws", "stats"))

Arrays = Mapping[str, np.ndarray]
"""Arrays `(chain, draw, ...)` by name."""


def write_draws(
    folder: Path, stem: str, first: int, draws: Arrays, stats: Arrays, held_chains: HeldChains | None
) -> list[Any]:
    """Write the draws of the chains that this process owns to a file; return its entry in a list, empty without draws.

    Args:
        folder: the folder.
        stem: beginning of the file's name.
        first: number of draws of each chain in earlier files, which are left out.
        draws: all draws so far, of the chains that this process holds.
        stats: their statistics.
        held_chains: the chains that each process holds; None if there are no other processes.

    Raises:
        OSError: when the disk is full or cannot be written.
    """
    chains, length = sizes(stats)
    runs = [[0, chains]] if held_chains is None else [[run.start, run.stop] for run in held_chains.owned_runs]
    if not runs or length <= first:
        return []
    rows = slice(None) if held_chains is None or held_chains.writes.all() else held_chains.writes
    new = {
        of: {name: values[rows, first:] for name, values in arrays.items()}
        for of, arrays in (("draws", draws), ("stats", stats))
    }
    name = f"{stem}.npz" if held_chains is None else f"{stem}-chains-{runs[0][0]}.npz"
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


def read_draws(
    folder: Path, entries: Sequence[Any], held_chains: HeldChains | None
) -> dict[str, dict[str, np.ndarray]]:
    """Return draws and statistics by name: of the chains that this process holds, of all if `held_chains` is None.

    Raises:
        ValueError: when files are damaged, or do not have each draw once.
    """
    parts = []
    end = 0
    for entry in entries:
        runs = [] if isinstance(entry, str) else entry[2]
        if (
            held_chains is not None
            and runs
            and not any(np.any((held_chains.numbers >= a) & (held_chains.numbers < b)) for a, b in runs)
        ):
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
    if held_chains is None:
        # entries may claim any number: arrays are allocated for draws that files have
        chains = 1 + max(int(part.numbers[-1]) for part in parts)
        _check_number(sum(len(part.numbers) * (part.end - part.first) for part in parts), chains, count)
        chain_numbers = np.arange(chains)
    else:
        chain_numbers = held_chains.numbers
        there = sum(int(np.isin(chain_numbers, part.numbers).sum()) * (part.end - part.first) for part in parts)
        _check_number(there, len(chain_numbers), count)
    return _together(parts, chain_numbers, count)


class _Part(NamedTuple):
    """Draws `first` to `end` of the chains `numbers`."""

    first: int
    end: int
    numbers: np.ndarray
    arrays: Mapping[str, Arrays]


def _check_number(there: int, chains: int, count: int) -> None:
    if there != chains * count:
        raise ValueError(f"they have {there} draws, and {chains} chains of {count} are expected")


def _together(parts: Sequence[_Part], chain_numbers: np.ndarray, count: int) -> dict[str, dict[str, np.ndarray]]:
    """Return the draws of the wanted chains, after checking that each is there once."""
    is_filled = np.zeros((len(chain_numbers), count), bool)
    arrays_by_kind = {of: _empty(parts[0].arrays[of], (len(chain_numbers), count)) for of in ("draws", "stats")}
    for first, end, numbers, arrays in parts:
        rows = np.flatnonzero(np.isin(chain_numbers, numbers))
        part_rows = np.searchsorted(numbers, chain_numbers[rows])
        is_filled[rows, first:end] = True
        for of, into in arrays_by_kind.items():
            if set(arrays[of]) != set(into):
                raise ValueError("they have different variables")
            for name, values in arrays[of].items():
                into[name][rows, first:end] = values[part_rows]
    if not is_filled.all():
        raise ValueError("some draws are there twice, and others are missing")
    return arrays_by_kind


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


class NextSave(NamedTuple):
    """Save to come, of which each process writes the draws of the chains that it owns.

    Attributes:
        number: its number.
        first: number of draws of each chain in files before it.
        has_warm_up: true if a file before it has the draws of warm-up.
    """

    number: int
    first: int
    has_warm_up: int | bool

    def write_draws(
        self, folder: Path, draws: Arrays, stats: Arrays, parts: Mapping[str, Any], held_chains: HeldChains | None
    ) -> tuple[list[Any], list[Any]]:
        """Write the draws of this process; see `RunFolder.write`.

        Returns:
            Entries of the files of draws, and of those with draws of warm-up.

        Raises:
            OSError: when the disk is full or cannot be written.
        """
        segments = write_draws(folder, f"draws-{self.number:08d}", self.first, draws, stats, held_chains)
        warmup_draws, stats = ({}, {}) if self.has_warm_up else warmup_parts(parts).values()
        return segments, write_draws(folder, f"warmup-{self.number:08d}", 0, warmup_draws, stats, held_chains)


class Together(NamedTuple):
    """Save that several processes write together.

    Attributes:
        held: the chains that each process holds.
        next: the save.
        others: waits for the draws of all processes, and returns what their `write_draws` returned.
    """

    held: HeldChains
    next: NextSave
    others: Callable[[], list[tuple[list[Any], list[Any]]]] = list


@dataclass
class RunFolder:
    """Saves of one run.

    Attributes:
        saves: the folder.
        segments: files of draws in the last save. An entry is the name, the number of earlier draws of each chain, and
            the ranges of its chains; in saves of earlier releases it may be the name of a file of all chains.
        count: number of draws of each chain in all of them.
        warm_up: files with the draws of warm-up; empty if they are discarded.
        merges: true if a save may merge files, which takes room: the save before did not fail.
    """

    saves: Saves
    segments: list[Any] = field(default_factory=list)
    count: int = 0
    warm_up: list[Any] = field(default_factory=list)
    merges: bool = True

    @classmethod
    def of(cls, folder: Path, title: str) -> RunFolder:
        """Return the folder at a path, which messages call `title`."""
        return cls(Saves(folder, title, "run"))

    def read(self, held_chains: HeldChains | None = None) -> tuple[Run, Continuation | None, Mapping[str, Any]] | None:
        """Return the run of the newest complete save, and its identity; None of a new folder.

        It has the draws of the chains that this process holds; of all if `held_chains` is None.

        Raises:
            ValueError: when all saves are damaged.
        """
        while True:
            manifests = self.saves.manifests
            try:
                entries = self.saves.newest()
                return None if entries is None else self.run_of(entries, held_chains)
            except (ValueError, FileNotFoundError):
                if self.saves.manifests == manifests:  # else a run that goes on has removed files
                    raise

    def run_of(
        self, entries: Mapping[str, Any], held_chains: HeldChains | None = None
    ) -> tuple[Run, Continuation | None, Mapping[str, Any]]:
        """Return the run of a save with these entries of its manifest, and its identity."""
        self._check(entries)
        self.segments = list(entries["segments"])
        self.warm_up = _warm_up_of(entries)
        (parts, timing, record), continuation = read_posterior(self.saves.folder / entries["run"])
        try:
            parts |= read_draws(self.saves.folder, self.segments, held_chains)
            if self.warm_up:
                parts |= zip(
                    WARMUP_PARTS, read_draws(self.saves.folder, self.warm_up, held_chains).values(), strict=True
                )
        except (ValueError, KeyError) as error:
            raise ValueError(f"{self.saves.called} is damaged: its files of draws do not fit ({error}).") from None
        self.count = sizes(parts["stats"])[1]
        return (parts, timing, record), continuation, entries["identity"]

    def _check(self, entries: Mapping[str, Any]) -> None:
        """Raise unless the entries of a manifest are of the right types, and name files that the manifest seals."""
        match entries:
            case {"segments": list(segments), "count": int(), "run": str(run), "identity": dict()}:
                files = (run, *map(file_of, [*segments, *_warm_up_of(entries)]))
                if all(name in self.saves.digests for name in files):
                    return
        raise ValueError(f"{self.saves.called} is damaged: the entries of its manifest are not those of a run.")

    def next(self, draws: int) -> NextSave:
        """Return the save to come of so many draws of each chain.

        Files of permanent saves stay as they are; merged ones would hold their draws once more.
        """
        if not all(is_file_inside(self.saves.folder, file_of(entry)) for entry in (*self.segments, *self.warm_up)):
            # removed while the run went on
            self.segments = []
            self.count = 0
            self.warm_up = []
        first = merged_from(self.segments, self.count, self.saves.last_permanent, draws) if self.merges else self.count
        return NextSave(self.saves.next_number, first, bool(self.warm_up))

    def write(
        self,
        identity: Mapping[str, Any],
        draws: Arrays,
        stats: Arrays,
        parts: Mapping[str, Any],
        timing: Timing,
        record: RunRecord,
        continuation: Continuation,
        at: int | None = None,
        together: Together | None = None,
    ) -> None:
        """Save a run so far, given all of its draws and statistics, and other parts of its posterior.

        `identity` is what a call that continues it must share; `at` is the number of draws of a permanent save. With
        other processes, the draws are those of the chains that the first one holds.

        Raises:
            OSError: when the disk is full or cannot be written; the saves before are unharmed.
        """
        number, first, _ = save = self.next(sizes(stats)[1]) if together is None else together.next
        self.merges = False
        mine = save.write_draws(self.saves.folder, draws, stats, parts, None if together is None else together.held)
        segments = [entry for entry in self.segments if isinstance(entry, str) or entry[1] < first]
        entries_of_processes = [mine, *([] if together is None else together.others())]
        segments, warm_up = (
            [*before, *(entry for one in entries_of_processes for entry in one[of])]
            for of, before in enumerate((segments, self.warm_up))
        )
        count = max(first, sizes(stats)[1])
        name = f"run-{number:08d}.npz"
        without = {"draws": {}, "stats": {}, **{name: parts[name] for name in parts if name not in WARMUP_PARTS}}
        files = {name: lambda file: write_posterior(file, without, timing, record, continuation)}
        entries = {"identity": dict(identity), "segments": segments, "count": count, "run": name, "warm_up": warm_up}
        self.saves.write(files, entries, [*map(file_of, [*segments, *warm_up])], at)
        self.segments = segments
        self.count = count
        self.warm_up = warm_up
        self.merges = True


def _warm_up_of(entries: Mapping[str, Any]) -> list[Any]:
    """Return the entries of the files with the draws of warm-up; saves of earlier releases may have none."""
    stages = entries.get("warm_up", [])
    return stages if isinstance(stages, list) else [""]  # no file is called so


def read_saved(path: Path) -> tuple[Run, Continuation | None]:
    """Return the run in a file, of the newest complete save in a folder, or of the save whose manifest is given.

    Raises:
        FileNotFoundError: when the path does not exist.
        ValueError: when the folder has no save, or what is read is damaged or something else.
    """
    if not (path.is_dir() or is_manifest(path)):
        return read_posterior(path)
    title = f"Posterior.load: {str(path)!r}"
    if path.is_dir():
        complete_run = RunFolder.of(path, title).read()
    else:
        folder = RunFolder.of(path.parent, title)
        try:
            complete_run = folder.run_of(folder.saves.entries_of(path))
        except (Damage, KeyError) as damage:
            raise folder.saves.damage(str(damage)) from None
    if complete_run is None:
        raise ValueError(f"{title} is a folder without a saved run.")
    run, continuation, _ = complete_run
    return run, continuation
