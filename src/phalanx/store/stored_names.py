"""Names of arrays in a store, which are names of folders: those of variables, escaped where they have to be.

A slash becomes a full stop, as in ArviZ. A backslash or control character becomes `%` and its code, as in addresses of
web pages, `%` stands before names that are no folder's, and a long name ends in a digest. The root of a store has the
true names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

LONGEST_NAME = 180
"""Bytes of a name; a file system takes 255, of which names of axes and of files beside it need some."""

_SPECIAL = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
"""Backslash, control characters, and halves of a character."""

_RESERVED = re.compile(r"\.*|__.*|zarr\.json", re.IGNORECASE | re.DOTALL)
"""Names that are no folder's, or Zarr's own."""


def stored_names(names: Iterable[str], folder: Path) -> dict[str, str]:
    """Return a different name of an array for each name.

    The first of names that would share a folder, such as `a/b` and `a.b`, is as it is, and the others have a digest.

    Args:
        names: names of variables or of dimensions.
        folder: the store; where its file system ignores case, names that differ only by case would share a folder.
    """
    keys: dict[str, str] = {}
    used_keys: set[str] = set()
    ignored = _ignores_case(folder)
    for name in dict.fromkeys(names):
        key = _escape(name.replace("/", "."))
        if (key.casefold() if ignored else key) in used_keys:
            key = _with_digest(key, name)
        used_keys.add(key.casefold() if ignored else key)
        keys[name] = key
    return keys


def _ignores_case(folder: Path) -> bool:
    """Return True if a folder above is found by its name in the other case, too."""
    there = (above for above in folder.absolute().parents if above.name.swapcase() != above.name and above.exists())
    above = next(there, None)
    other = None if above is None else above.with_name(above.name.swapcase())
    return above is not None and other is not None and other.exists() and above.samefile(other)


def _escape(name: str) -> str:
    """Return a name as one of a folder."""
    key = _SPECIAL.sub(lambda match: quote(match[0], safe="", errors="surrogatepass"), name)
    if _RESERVED.fullmatch(key):
        key = f"%{key}"
    return key if len(key.encode()) <= LONGEST_NAME else _with_digest(key, name)


def _with_digest(key: str, name: str) -> str:
    """Return the beginning of a name, followed by a digest of the whole."""
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{key.encode()[: LONGEST_NAME - 20].decode(errors='ignore')}%{digest}"
