"""Folder of a run under way: its draws in files that are written once, and after each save the state to continue from.

A save adds two files: the draws since the save before, and a posterior of the run so far without draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.posterior.continuation import Continuation
from phalanx.posterior.file import Run, read_posterior, write_posterior
from phalanx.posterior.record import RunRecord, Timing
from phalanx.store.archive import Kind, read_archive, write_archive
from phalanx.store.saves import Damage, Saves, is_manifest
from phalanx.store.sealed import is_inside

DRAWS = Kind("file of draws", "checkpoint", "phalanx.draws", (1,), ("draws", "stats"))

Arrays = Mapping[str, np.ndarray]
"""Arrays `(chain, draw, ...)` by name."""


@dataclass
class RunFolder:
    """Saves of one run.

    Attributes:
        saves: the folder.
        segments: files of draws that the last save has, and the number of draws of each chain in all of them.
    """

    saves: Saves
    segments: list[str] = field(default_factory=list)
    count: int = 0

    @classmethod
    def of(cls, folder: Path, called: str) -> RunFolder:
        """Return the folder at a path, `called` so in messages."""
        return cls(Saves(folder, called, "run"))

    def read(self) -> tuple[Run, Continuation | None, Mapping[str, str]] | None:
        """Return the run of the newest complete save, and its identity; None of a new folder.

        Raises:
            ValueError: when all saves are damaged.
        """
        entries = self.saves.newest()
        return None if entries is None else self.run_of(entries)

    def run_of(self, entries: Mapping[str, Any]) -> tuple[Run, Continuation | None, Mapping[str, str]]:
        """Return the run of a save with these entries of its manifest, and its identity."""
        self._check(entries)
        self.segments, self.count = list(entries["segments"]), entries["count"]
        (parts, timing, record), goes_on = read_posterior(self.saves.folder / entries["run"])
        segments = [read_archive(self.saves.folder / name, DRAWS, _arrays_of) for name in self.segments]
        try:
            parts |= {part: _joined([segment[part] for segment in segments]) for part in ("draws", "stats")}
        except (ValueError, KeyError) as error:
            raise ValueError(f"{self.saves.called} is damaged: its files of draws do not fit ({error}).") from None
        return (parts, timing, record), goes_on, entries["identity"]

    def _check(self, entries: Mapping[str, Any]) -> None:
        """Raise unless the entries of a manifest are of the right types, and name files that the manifest seals."""
        match entries:
            case {"segments": list(segments), "count": int(), "run": str(run), "identity": dict()}:
                if all(isinstance(name, str) and name in self.saves.digests for name in (run, *segments)):
                    return
        raise ValueError(f"{self.saves.called} is damaged: the entries of its manifest are not those of a run.")

    def write(
        self, identity: Mapping[str, str], draws: Arrays, stats: Arrays, parts: Mapping[str, Any], timing: Timing,
        record: RunRecord, goes_on: Continuation, at: int | None = None,
    ) -> None:  # fmt: skip
        """Save a run so far, given all of its draws and statistics, and other parts of its posterior.

        `identity` is what a call that continues it must share; `at` is the number of draws of a permanent save.

        Raises:
            OSError: when the disk is full or cannot be written; the saves before are unharmed.
        """
        count = next((values.shape[1] for values in stats.values()), 0)
        if not all(is_inside(self.saves.folder, name) for name in self.segments):  # removed while the run went on
            self.segments, self.count = [], 0
        files, before, number = {}, list(self.segments), f"{self.saves.next_number:08d}"
        if count > self.count:
            new = {"draws": _since(draws, self.count), "stats": _since(stats, self.count)}
            files[f"draws-{number}.npz"] = lambda file: write_archive(file, DRAWS, new, {})
        segments = [*before, *files]
        name = f"run-{number}.npz"
        without = {"draws": {}, "stats": {}, **parts}
        files[name] = lambda file: write_posterior(file, without, timing, record, goes_on)
        entries = {"identity": dict(identity), "segments": segments, "count": count, "run": name}
        self.saves.write(files, entries, before, at)
        self.segments, self.count = segments, count


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


def _arrays_of(parts: dict[str, Any], _: Mapping[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """Return the parts of a file of draws after checking that they are arrays by name."""
    for name, array in {**parts["draws"], **parts["stats"]}.items():
        if np.ndim(array) < 2:
            raise ValueError(f"{name!r} has no chains and draws")
    return parts


def _joined(segments: Sequence[Arrays]) -> dict[str, np.ndarray]:
    names = segments[0] if segments else ()
    return {name: np.concatenate([segment[name] for segment in segments], axis=1) for name in names}


def _since(arrays: Arrays, count: int) -> dict[str, np.ndarray]:
    return {name: values[:, count:] for name, values in arrays.items()}
