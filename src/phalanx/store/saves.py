"""Folder of saves: files that never change, and for each save a manifest, which commits it.

A file is written aside, synced to the disk and renamed; then the manifest with the SHA-256 of every file of the save,
in the same way. A save whose manifest is missing or damaged, or one of whose files is, does not exist. A process that
is killed at any moment, or a full disk, therefore leaves the save before.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.mesh.output import warn
from phalanx.store.save_path import lock, replacing
from phalanx.store.sealed import digests, is_file_inside, seal, unseal

VERSION = 1
"""Version of the format."""

KEPT = 2
"""Temporary saves that are there: a damaged one leaves the one before."""

MANIFEST = re.compile(r"save-(\d{8,})(?:-at-(\d+))?\.json")
"""Name of a manifest: the number of the save, and of a permanent one the draws or steps."""

LOCK = "lock"


@dataclass
class Saves:
    """Folder of the saves of one run or training.

    Attributes:
        folder: the folder.
        called: its name in messages.
        kind: noun for what is saved.
        index: name of the index that earlier releases wrote, which counts as the first manifest.
        digests: of the files of the newest complete save, by name.
        damaged: manifests of damaged saves, which the next save removes.
    """

    folder: Path
    called: str
    kind: str
    index: str = ""
    digests: dict[str, str] = field(default_factory=dict)
    damaged: list[Path] = field(default_factory=list)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process, and make it where it is missing.

        Raises:
            FileExistsError: when the folder holds something else, or is a file.
            ValueError: when another process writes to it.
        """
        self.refuse_others()
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(self.folder / LOCK) and not is_file_inside(self.folder, LOCK):
            raise FileExistsError(f"{self.called} has a {LOCK!r} that is not a file in the folder. Remove it.")
        with (self.folder / LOCK).open("a") as stream:
            if not lock(stream.fileno(), self.called):
                raise ValueError(
                    f"{self.called} is in use: another process writes a {self.kind} to it. Name another folder, or end "
                    f"that process."
                )
            yield

    def newest(self) -> dict[str, Any] | None:
        """Return the entries of the newest complete save, or None of a folder without saves.

        Warns:
            UserWarning: when a newer save is damaged; the warning names the file.

        Raises:
            ValueError: when there are saves, and all are damaged.
        """
        damages: list[str] = []
        for manifest in reversed(self.manifests):
            try:
                entries = self.entries_of(manifest)
            except Damage as damage:
                if not os.path.lexists(manifest):  # a run that goes on has removed it after later saves
                    return self.newest()
                damages.append(str(damage))
                self.damaged.append(manifest)
                continue
            if damages:
                warn(
                    f"{self.called}: the last save is damaged ({'; '.join(damages)}); the save before it is used.",
                    stacklevel=2,
                )
            return entries
        if damages:
            raise self.damage("; ".join(damages))
        return None

    def entries_of(self, manifest: Path) -> dict[str, Any]:
        """Return the entries of one save.

        Raises:
            Damage: when it is damaged.
            ValueError: when a later release wrote it.
        """
        is_old = manifest.name == self.index
        try:
            entries = unseal(manifest.name, self.folder, manifest.name, "", must_be_sealed=not is_old)
        except (ValueError, OSError) as error:
            raise Damage(str(error).rstrip(". ")) from None
        version = entries.pop("version", 0 if is_old else None)
        if not isinstance(version, int) or version > VERSION:
            raise ValueError(
                f"{self.called} was saved by a later release of Phalanx: {manifest.name} has version {version!r} "
                f"of the format, and this release reads {VERSION}. Install that release, or name another folder."
            )
        self.digests = digests(self.folder, manifest.name)
        return entries

    def damage(self, how: str) -> ValueError:
        """Return the error of a folder that is damaged."""
        return ValueError(
            f"{self.called} is damaged: {how}. Restore the folder from a copy, or delete it to begin anew."
        )

    def write(
        self,
        files: Mapping[str, Callable[[Path], Any]],
        entries: Mapping[str, Any],
        before: Sequence[str] = (),
        at: int | None = None,
    ) -> None:
        """Write a save, then remove the temporary ones that are older than the one before it.

        Args:
            files: by name, what writes the file or folder to a path.
            entries: entries of the manifest, as JSON has them.
            before: files and folders of earlier saves that belong to this one, too.
            at: draws or steps of a permanent save; None of a temporary one.

        Raises:
            OSError: when the disk is full or cannot be written; the saves before are unharmed.
        """
        for name, write in files.items():
            write(self.folder / name)
        manifest = self.folder / f"save-{self.next_number:08d}{'' if at is None else f'-at-{at}'}.json"
        sealed = {name: digest for name, digest in self.digests.items() if _top(name) in before}
        text = seal({"version": VERSION, **entries}, self.folder, [*before, *files], sealed)
        with replacing(manifest) as partial:
            partial.write_text(text, encoding="utf-8")
        self.digests = digests(self.folder, manifest.name)
        self._remove_old()

    @property
    def next_number(self) -> int:
        """Number of the next save."""
        return 1 + max(map(_number, self.manifests), default=0)

    @property
    def contents(self) -> set[str]:
        """Names of the files and folders of the newest complete save."""
        return {_top(name) for name in self.digests}

    @property
    def last_permanent(self) -> int:
        """Draws or steps of the last permanent save; 0 without."""
        return max((_at(manifest) or 0 for manifest in self.manifests), default=0)

    @property
    def manifests(self) -> list[Path]:
        """Manifests, the oldest first."""
        manifests = [path for path in self.folder.glob("save-*.json") if MANIFEST.fullmatch(path.name)]
        old = [self.folder / self.index] if self.index and (self.folder / self.index).is_file() else []
        return [*old, *sorted(manifests, key=_number)]

    def contents_of(self, manifests: Iterable[Path]) -> set[str]:
        """Return names of the files and folders that belong to some saves."""
        return {_top(name) for manifest in manifests for name in digests(self.folder, manifest.name)}

    def _remove_old(self) -> None:
        whole = [manifest for manifest in self.manifests if manifest not in self.damaged]
        temporary = [manifest for manifest in whole if _at(manifest) is None]
        old = [*temporary[:-KEPT], *self.damaged]
        current_files = self.contents_of(m for m in whole if m not in old)
        stale = self.contents_of(old)
        for manifest in old:
            manifest.unlink(missing_ok=True)
        # only what old saves list: the user may keep other files in the folder
        for path in (*(self.folder / name for name in stale - current_files), *self.folder.glob(".*.partial")):
            remove(path)
        self.damaged = []

    def refuse_others(self) -> None:
        """Raise if something else is in the folder, or in its place.

        Raises:
            FileExistsError: when there is a file, or a folder with other contents.
        """
        in_the_way = next((above for above in (self.folder, *self.folder.parents) if above.is_file()), None)
        if in_the_way is not None:
            raise FileExistsError(f"{self.called} cannot be made: {str(in_the_way)!r} is a file.")
        ours = self.folder.is_dir() and (self.manifests or (self.folder / LOCK).is_file())
        if self.folder.is_dir() and not ours and any(self.folder.iterdir()):
            raise FileExistsError(
                f"{self.called} exists and holds no {self.kind}, so it is left alone. Name a folder that is new, "
                f"empty, or was saved to before."
            )


class Damage(ValueError):
    """Error of one save that is damaged."""


def is_manifest(path: Path) -> bool:
    """Return whether a path is that of a manifest."""
    return path.is_file() and MANIFEST.fullmatch(path.name) is not None


def remove(path: Path) -> None:
    """Remove a file, or a folder with its contents, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _number(manifest: Path) -> int:
    match = MANIFEST.fullmatch(manifest.name)
    return 0 if match is None else int(match[1])


def _at(manifest: Path) -> int | None:
    match = MANIFEST.fullmatch(manifest.name)
    return None if match is None or match[2] is None else int(match[2])


def _top(name: str) -> str:
    """Return the file or folder in the folder of saves that a sealed file belongs to."""
    return name.partition("/")[0]


class BackgroundWriter:
    """Thread that writes one save at a time.

    Args:
        folder: the folder.
        title: its name in messages.
        what_continues: noun for what continues after a save that failed.
    """

    def __init__(self, folder: Path, title: str, what_continues: str):
        self._folder = folder
        self._called = title
        self._what_continues = what_continues
        self._thread = ThreadPoolExecutor(1, "phalanx-checkpoint")
        self._writing: Future[Any] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the thread in a `with` block, which ends when the save under way has."""
        with self._thread:
            try:
                yield
            finally:
                self.wait()

    @property
    def is_idle(self) -> bool:
        """True if no save is under way."""
        return self._writing is None or self._writing.done()

    def submit(self, write: Callable[..., Any], *arguments: Any) -> None:
        """Call `write` in the thread, after the save under way."""
        self.wait()
        self._writing = self._thread.submit(write, *arguments)

    def wait(self) -> None:
        """Wait for the save under way; one that fails is reported."""
        writing = self._writing
        self._writing = None
        if writing is None:
            return
        try:
            writing.result()
        except Exception as failure:  # a disk's, or of a user's reducer whose results no file can hold
            self.report(failure)

    def report(self, failure: Exception) -> None:
        """Warn of a save that failed."""
        is_there = self._folder.is_dir()
        before = "there is no save before it"
        if not is_there:
            before = "the folder and its saves are gone"
        elif any(map(is_manifest, self._folder.iterdir())):
            before = "the save before it is unharmed"
        advice = "Make room on the disk, or restore the right to write to the folder."
        advice = advice if is_there else "Make the folder again: the next save writes everything."
        warn(
            f"{self._called}: a save failed ({failure}); {before}, and the {self._what_continues} continues."
            f"{f' {advice}' if isinstance(failure, OSError) else ''}",
            stacklevel=4,
        )
