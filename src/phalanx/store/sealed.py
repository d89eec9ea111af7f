"""JSON index of a folder that seals the files beside it: SHA-256 of each file, and of the index itself.

The index is written last. A reader checks every file against it first, so that a damaged, truncated or lost file is
reported by name and no wrong value is read. Folders of earlier releases have no seal, and are read unchecked. A name in
the index that leads out of the folder, by itself or by a symbolic link, counts as damage: that file is not opened.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

FILES = "files"
"""Entry of the index with the digest of each file, by name."""

SEAL = "seal"
"""Entry of the index with the digest of all other entries."""


def seal(record: Mapping[str, Any], folder: Path, parts: Iterable[str], sealed: Mapping[str, str] | None = None) -> str:
    """Return the text of an index.

    Args:
        record: other entries of the index, as JSON has them.
        folder: the folder of the files.
        parts: names of files in it to seal, and of folders in it whose files are all sealed.
        sealed: digests by name of files that an earlier index has, which are not read again.
    """
    sealed = sealed or {}
    paths = [file for part in parts for file in (folder / part, *sorted((folder / part).rglob("*")))]
    names = [file.relative_to(folder).as_posix() for file in paths]
    files = {name: sealed.get(name) or _digest(folder / name) for name in names if (folder / name).is_file()}
    entries = json.loads(json.dumps({**record, FILES: files}))
    return json.dumps({**entries, SEAL: digest_of(entries)}, indent=1) + "\n"


def unseal(what: str, folder: Path, index: str, advice: str, *, must_be_sealed: bool = False) -> dict[str, Any]:
    """Return the entries of an index, after checking every file.

    Args:
        what: the folder's name in messages.
        folder: the folder.
        index: name of the index in it.
        advice: advice on a damaged folder.
        must_be_sealed: whether an index without a seal is damaged; folders of earlier releases have none.

    Raises:
        ValueError: when the index or a file is damaged; the message names it.
    """

    def damaged(how: str) -> ValueError:
        return ValueError(f"{what} is damaged: {how}. {advice}")

    if not is_file_inside(folder, index):
        raise damaged(f"its {index} is not a file in the folder")
    try:
        entries = json.loads((folder / index).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged(f"its {index} is not JSON ({error})") from None
    if not isinstance(entries, dict):
        raise damaged(f"its {index} is not a JSON object")
    if SEAL not in entries and not must_be_sealed:
        return entries
    recorded_digest = entries.pop(SEAL, None)
    files = entries.get(FILES)
    if digest_of(entries) != recorded_digest or not isinstance(files, dict):
        raise damaged(f"the entries of its {index} do not have the checksum that was written with them")
    for name, digest in files.items():
        if not is_file_inside(folder, name):
            is_there = os.path.lexists(folder / name)
            raise damaged(f"the file {name} is {'not a file in the folder' if is_there else 'missing'}")
        if _digest(folder / name) != digest:
            raise damaged(f"the file {name} does not have the checksum that {index} holds")
    entries.pop(FILES)
    return entries


def digests(folder: Path, index: str) -> dict[str, str]:
    """Return the digests of files in the folder from its index; empty where the index cannot be read."""
    if not is_file_inside(folder, index):
        return {}
    try:
        by_file = json.loads((folder / index).read_text(encoding="utf-8"))[FILES]
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return {}
    if not isinstance(by_file, dict):
        return {}
    return {name: digest for name, digest in by_file.items() if is_file_inside(folder, name)}


def is_file_inside(folder: Path, name: str) -> bool:
    """Return True if `folder / name` is a regular file that lies in the folder or below it, after following links.

    False, too, for an absolute name, and for one with `.`, `..` or a double slash: a file is removed by the first part
    of its name, which must then be an entry of the folder.
    """
    parts = PurePosixPath(name).parts
    if "/".join(parts) != name or ".." in parts:
        return False
    try:
        path = (folder / name).resolve()
        root = folder.resolve()
        return path.is_relative_to(root) and path.is_file()
    except (OSError, ValueError, RuntimeError):  # a name that is too long, holds a null character, or links in a circle
        return False


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_of(entries: Mapping[str, Any]) -> str:
    """Return the SHA-256 of entries, as JSON has them."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
