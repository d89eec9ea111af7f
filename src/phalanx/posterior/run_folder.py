"""Folder of a run under way: its draws in files that are written once, and after each save the state to continue from.

A save adds the draws since the save before, in one file of each process that owns chains, and a posterior of the run so
far without draws. Any number of processes continues from it: each reads the files with draws of its own chains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.mesh.chains import HeldChains
from phalanx.posterior.continuation import Continuation
from phalanx.posterior.file import WARMUP_PARTS, Run, read_posterior, warmup_parts, write_posterior
from phalanx.posterior.processes.segments import DRAWS, Arrays, file_of, read_draws, write_draws
from phalanx.posterior.record import RunRecord, Timing
from phalanx.store.archive import write_archive
from phalanx.store.saves import Damage, Saves, is_manifest
from phalanx.store.sealed import is_inside


class Together(NamedTuple):
    """Save that several processes write together.

    Attributes:
        held: the chains that each process holds.
        number: number of the save.
        first: number of draws of each chain in files before it.
        others: waits for the files of draws of all processes, and returns their entries.
    """

    held: HeldChains
    number: int
    first: int
    others: Callable[[], list[Any]] = list


@dataclass
class RunFolder:
    """Saves of one run.

    Attributes:
        saves: the folder.
        segments: files of draws in the last save. An entry is a file name (all chains), or the name, the number of
            earlier draws of each chain, and the ranges of its chains.
        count: number of draws of each chain in all of them.
        warm_up: names of the files with the draws of warm-up: one, or none.
    """

    saves: Saves
    segments: list[Any] = field(default_factory=list)
    count: int = 0
    warm_up: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path, called: str) -> RunFolder:
        """Return the folder at a path, `called` so in messages."""
        return cls(Saves(folder, called, "run"))

    def read(self, held: HeldChains | None = None) -> tuple[Run, Continuation | None, Mapping[str, str]] | None:
        """Return the run of the newest complete save, and its identity; None of a new folder.

        It has the draws of the chains that this process holds; of all if `held` is None.

        Raises:
            ValueError: when all saves are damaged.
        """
        entries = self.saves.newest()
        return None if entries is None else self.run_of(entries, held)

    def run_of(
        self, entries: Mapping[str, Any], held: HeldChains | None = None
    ) -> tuple[Run, Continuation | None, Mapping[str, str]]:
        """Return the run of a save with these entries of its manifest, and its identity."""
        self._check(entries)
        self.segments, self.count, self.warm_up = list(entries["segments"]), entries["count"], _warm_up_of(entries)
        (parts, timing, record), goes_on = read_posterior(self.saves.folder / entries["run"])
        try:
            parts |= read_draws(self.saves.folder, self.segments, held)
            if self.warm_up:
                parts |= zip(WARMUP_PARTS, read_draws(self.saves.folder, self.warm_up, None).values(), strict=True)
        except (ValueError, KeyError) as error:
            raise ValueError(f"{self.saves.called} is damaged: its files of draws do not fit ({error}).") from None
        return (parts, timing, record), goes_on, entries["identity"]

    def _check(self, entries: Mapping[str, Any]) -> None:
        """Raise unless the entries of a manifest are of the right types, and name files that the manifest seals."""
        match entries:
            case {"segments": list(segments), "count": int(), "run": str(run), "identity": dict()}:
                files = (run, *map(file_of, segments), *_warm_up_of(entries))
                if all(name in self.saves.digests for name in files):
                    return
        raise ValueError(f"{self.saves.called} is damaged: the entries of its manifest are not those of a run.")

    def next(self) -> tuple[int, int]:
        """Return the number of the next save, and the number of draws of each chain in existing files."""
        files = (*map(file_of, self.segments), *self.warm_up)
        if not all(is_inside(self.saves.folder, file) for file in files):
            self.segments, self.count, self.warm_up = [], 0, []  # removed while the run went on
        return self.saves.next_number, self.count

    def write(
        self, identity: Mapping[str, str], draws: Arrays, stats: Arrays, parts: Mapping[str, Any], timing: Timing,
        record: RunRecord, goes_on: Continuation, at: int | None = None, together: Together | None = None,
    ) -> None:  # fmt: skip
        """Save a run so far, given all of its draws and statistics, and other parts of its posterior.

        `identity` is what a call that continues it must share; `at` is the number of draws of a permanent save. With
        other processes, the draws are those of the chains that the first one holds.

        Raises:
            OSError: when the disk is full or cannot be written; the saves before are unharmed.
        """
        number, first = self.next() if together is None else (together.number, together.first)
        mine = write_draws(self.saves.folder, number, first, draws, stats, None if together is None else together.held)
        segments = [*self.segments, *mine, *([] if together is None else together.others())]
        count = max(first, next((values.shape[1] for values in stats.values()), 0))
        name = f"run-{number:08d}.npz"
        without = {"draws": {}, "stats": {}, **{name: parts[name] for name in parts if name not in WARMUP_PARTS}}
        files: dict[str, Any] = {name: lambda file: write_posterior(file, without, timing, record, goes_on)}
        kept, warm_up = dict(zip(DRAWS.parts, warmup_parts(parts).values(), strict=True)), self.warm_up
        if kept["stats"] and not warm_up:
            warm_up = [f"warmup-{number:08d}.npz"]
            files[warm_up[0]] = lambda file: write_archive(file, DRAWS, kept, {})
        entries = {"identity": dict(identity), "segments": segments, "count": count, "run": name, "warm_up": warm_up}
        self.saves.write(files, entries, [*map(file_of, segments), *self.warm_up], at)
        self.segments, self.count, self.warm_up = segments, count, warm_up


def _warm_up_of(entries: Mapping[str, Any]) -> list[str]:
    """Return the names of the files with the draws of warm-up; saves of earlier releases have none."""
    match entries.get("warm_up", []):
        case [] | [str()] as names:
            return list(names)
    return [""]  # no file is called so


def read_saved(path: Path) -> tuple[Run, Continuation | None]:
    """Return the run in a file, of the newest complete save in a folder, or of the save whose manifest is given.

    Raises:
        FileNotFoundError: when the path does not exist.
        ValueError: when the folder has no save, or what is read is damaged or something else.
    """
    if not (path.is_dir() or is_manifest(path)):
        return read_posterior(path)
    called = f"Posterior.load: {str(path)!r}"
    if path.is_dir():
        found = RunFolder.of(path, called).read()
    else:
        folder = RunFolder.of(path.parent, called)
        try:
            found = folder.run_of(folder.saves.entries_of(path))
        except (Damage, KeyError) as damage:
            raise folder.saves.damage(str(damage)) from None
    if found is None:
        raise ValueError(f"{called} is a folder without a saved run.")
    run, goes_on, _ = found
    return run, goes_on
