"""Folder of saves: files that never change, and for each save a manifest, which commits it.

A file is written aside, synced to the disk and renamed; then the manifest with the SHA-256 of every file of the save,
in the same way. A save whose manifest is missing or damaged, or one of whose files is, does not exist. A process that
is killed at any moment, or a full disk, therefore leaves the save before.
"""

from __future__ import annotations

import fcntl
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.store.save_path import replacing
from phalanx.store.sealed import digests, seal, unseal

VERSION = 1
"""Version of the format."""

KEPT = 2
"""Saves that are kept: a damaged one leaves the one before."""

LOCK = "lock"


@dataclass
class Saves:
    """Folder of the saves of one run.

    Attributes:
        folder: the folder.
        called: its name in messages.
        kind: noun for what is saved.
        digests: of the files of the newest complete save, by name.
        damaged: manifests of damaged saves, which the next save removes.
    """

    folder: Path
    called: str
    kind: str
    digests: dict[str, str] = field(default_factory=dict)
    damaged: list[Path] = field(default_factory=list)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process, and make it where it is missing.

        Raises:
            FileExistsError: when the folder holds something else, or is a file.
            ValueError: when another process writes to it.
        """
        self._refuse_others()
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOCK).open("w") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"{self.called} is in use: another process writes a {self.kind} to it. Name another folder, or end "
                    f"that process."
                ) from None
            yield

    def newest(self) -> dict[str, Any] | None:
        """Return the entries of the newest complete save, or None of a folder without saves.

        Warns:
            UserWarning: when a newer save is damaged; the warning names the file.

        Raises:
            ValueError: when there are saves, and all are damaged.
        """
        damages: list[str] = []
        for manifest in sorted(self._manifests(), reverse=True):
            try:
                entries = unseal(manifest.name, self.folder, manifest.name, "", must_be_sealed=True)
            except ValueError as error:
                damages.append(str(error).rstrip(". "))
                self.damaged.append(manifest)
                continue
            if (version := entries.get("version")) != VERSION:
                raise ValueError(
                    f"{self.called} was saved by a later release of Phalanx: {manifest.name} has version {version!r} "
                    f"of the format, and this release reads {VERSION}. Install that release, or name another folder."
                )
            if damages:
                warnings.warn(
                    f"{self.called}: the last save is damaged ({'; '.join(damages)}); the save before it is used.",
                    stacklevel=2,
                )
            self.digests = digests(self.folder, manifest.name)
            return entries
        if damages:
            raise ValueError(
                f"{self.called} is damaged: {'; '.join(damages)}. Restore the folder from a copy, or delete it to "
                f"begin anew."
            )
        return None

    def write(
        self, files: Mapping[str, Callable[[Path], Any]], entries: Mapping[str, Any], before: Sequence[str] = ()
    ) -> None:
        """Write a save, then remove those that are older than the one before it.

        Args:
            files: by name, what writes the file to a path.
            entries: entries of the manifest, as JSON has them.
            before: files of earlier saves that belong to this one, too.

        Raises:
            OSError: when the disk is full or cannot be written; the saves before are unharmed.
        """
        for name, write in files.items():
            write(self.folder / name)
        manifest = self.folder / f"save-{self.next_number:08d}.json"
        known = {name: self.digests[name] for name in before}
        text = seal({"version": VERSION, **entries}, self.folder, [*before, *files], known)
        with replacing(manifest) as partial:
            partial.write_text(text, encoding="utf-8")
        self.digests = digests(self.folder, manifest.name)
        self._remove_old()

    @property
    def next_number(self) -> int:
        """Number of the next save."""
        return 1 + max((int(manifest.stem.partition("-")[2]) for manifest in self._manifests()), default=0)

    def _manifests(self) -> Iterator[Path]:
        return self.folder.glob("save-" + "[0-9]" * 8 + ".json")

    def _remove_old(self) -> None:
        manifests = sorted(set(self._manifests()).difference(self.damaged))
        old = [*manifests[:-KEPT], *self.damaged]
        needed, stale = (
            {name for manifest in some for name in digests(self.folder, manifest.name)}
            for some in (manifests[-KEPT:], old)
        )
        for manifest in old:
            manifest.unlink(missing_ok=True)
        # only files that old saves list: the user may keep others in the folder
        for file in (*(self.folder / name for name in stale - needed), *self.folder.glob(".*.partial")):
            file.unlink(missing_ok=True)
        self.damaged = []

    def _refuse_others(self) -> None:
        in_the_way = next((above for above in (self.folder, *self.folder.parents) if above.is_file()), None)
        if in_the_way is not None:
            raise FileExistsError(f"{self.called} cannot be made: {str(in_the_way)!r} is a file.")
        ours = self.folder.is_dir() and (any(self._manifests()) or (self.folder / LOCK).is_file())
        if self.folder.is_dir() and not ours and any(self.folder.iterdir()):
            raise FileExistsError(
                f"{self.called} exists and holds no {self.kind}, so it is left alone. Name a folder that is new, "
                f"empty, or was saved to before."
            )
