"""Reading of a store of draws in Zarr: the entries of its root, and the arrays up to the last committed draw.

The root also has the kind of each array, so that an array that was lost or changed is refused. Its entries are sealed
by a checksum, like the chunks of draws: behind the committed draws a chunk contains only the fill value, so that a
wrong number of them would show draws that no chain has made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.extras import require
from phalanx.store.lazy_array import StoredArray
from phalanx.store.sealed import SEAL, digest_of

VERSION = 2
"""Version of the format; the entries of version 1 have no checksum."""

OURS = "phalanx"
"""Name of our entry among the attributes of the root."""

ARRAYS = "arrays"
"""Name in our entry of the kinds of arrays by group and name."""

POSTERIOR = "posterior"
"""Group of the draws."""

STATS = "sample_stats"
"""Group of their statistics."""

WARM_UP = "warmup_"
"""Prefix of the groups with draws of warm-up and their statistics."""


def read_zarr(
    path: Path, title: str, count: int | None = None
) -> tuple[dict[str, StoredArray], dict[str, StoredArray], dict[str, Any]]:
    """Return the first `count` draws and statistics of a store, by default all, and the entries of its root.

    Raises:
        FileNotFoundError: when there is no folder.
        ValueError: when it is no store of ours, damaged, or written by a later release.
    """
    root, entries = root_of(path, title)
    committed = entries.get("committed", 0)
    if committed < (count or 0):
        raise ValueError(f"{title} is damaged: it has {committed} committed draws of {count}.")
    count = committed if count is None else count
    return *_arrays_of_groups(root, entries, (POSTERIOR, STATS) if count else (), count, title), entries


def read_warm_up(path: Path, title: str) -> tuple[dict[str, StoredArray], dict[str, StoredArray]]:
    """Return the draws of warm-up in a store, and their statistics, as `read_zarr`; empty if it has none."""
    root, entries = root_of(path, title)
    groups = f"{WARM_UP}{POSTERIOR}", f"{WARM_UP}{STATS}"
    has_them = groups[0] in entries.get(ARRAYS, root)
    # they are written before the first draws are committed
    return _arrays_of_groups(root, entries, groups if entries.get("committed") and has_them else (), None, title)


def is_zarr(path: Path) -> bool:
    """Return whether a folder is a Zarr store."""
    return (path / "zarr.json").is_file()


def _arrays_of_groups(
    root: Any, entries: Mapping[str, Any], groups: tuple[str, ...], count: int | None, title: str
) -> tuple[dict[str, StoredArray], dict[str, StoredArray]]:
    groups_of_arrays: list[dict[str, StoredArray]] = []
    for group in groups:
        try:
            arrays = _in_order(dict(arrays_in(root[group])), entries.get(ARRAYS, {}).get(group, {}))
        except Exception as error:  # of many classes: metadata are parsed here
            raise ValueError(
                f"{title} is damaged: its group {group} cannot be read ({error}). A zarr.json in that folder is "
                f"missing or damaged: restore it from a copy."
            ) from error
        _check_kinds(arrays, entries, group, title)
        if short := [(name, array.shape[1]) for name, array in arrays.items() if array.shape[1] < (count or 0)]:
            raise ValueError(f"{title} is damaged: {short[0][0]} has {short[0][1]} of {count} draws.")
        lengths = {name: array.shape[1] if count is None else count for name, array in arrays.items()}
        groups_of_arrays.append({name: StoredArray(array, lengths[name]) for name, array in arrays.items()})
    draws, stats = groups_of_arrays or ({}, {})
    return draws, stats


def _in_order(arrays: Mapping[str, Any], order: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays in the order in which the run made them; Zarr lists them in any order."""
    return {name: arrays[name] for name in [*(n for n in order if n in arrays), *sorted(arrays.keys() - order.keys())]}


def _check_kinds(arrays: Mapping[str, Any], entries: Mapping[str, Any], group: str, title: str) -> None:
    """Raise unless a group has the arrays that the run made in it; earlier releases did not record them."""
    for name, kind in entries.get(ARRAYS, {}).get(group, {}).items():
        if name not in arrays:
            raise ValueError(
                f"{title} is damaged: its group {group} has lost {name!r}. Restore the folder from a copy."
            )
        if (now := kind_of(arrays[name])) != kind:
            raise ValueError(
                f"{title} is damaged: {name!r} of its group {group} is [type, chains, ...] = {now}, and the run wrote "
                f"{kind}. Restore the folder from a copy."
            )


def root_of(path: Path, title: str) -> tuple[Any, dict[str, Any]]:
    """Return the root of a store, and our entries in it.

    Raises:
        FileNotFoundError: when there is no folder.
        ValueError: when it is no store of ours, damaged, or written by a later release.
    """
    if not path.exists():
        raise FileNotFoundError(f"{title} does not exist.")
    try:
        root = require("zarr").open_group(path, mode="r+", zarr_format=3)
        entries = dict(root.attrs[OURS])
    except ImportError:
        raise
    except Exception as error:  # of many classes: metadata are parsed here
        raise ValueError(
            f"{title} is not a store of draws, or is damaged ({error}). If a run has made it, restore "
            f"{str(path / 'zarr.json')!r} from a copy."
        ) from error
    match {"committed": 0, ARRAYS: {}, **entries}:
        case {"version": int(version), "committed": int(committed), "arrays": dict(arrays)}:
            are_counts = not isinstance(version, bool) and not isinstance(committed, bool)
            is_sound = are_counts and version > 0 and committed >= 0
            is_sound = is_sound and all(isinstance(kinds, dict) for kinds in arrays.values())
        case _:
            version, is_sound = VERSION, False
    if version > VERSION:
        raise ValueError(f"{title} was written by a later release of Phalanx. Read it with that release.")
    if not is_sound:
        raise ValueError(
            f"{title} is damaged: its version, its committed draws or its arrays are not those of a store."
        )
    seal = entries.pop(SEAL, None)
    if version > 1 and seal != digest_of(entries):
        raise ValueError(
            f"{title} is damaged: the entries of its zarr.json, such as the number of committed draws, do not have "
            f"the checksum that was written with them. Restore {str(path / 'zarr.json')!r} from a copy. The arrays "
            f"are files of their own: zarr.open_group({str(path)!r})['posterior'] still reads them."
        )
    return root, entries


def write_entries(root: Any, entries: Mapping[str, Any]) -> None:
    """Write our entries of the root, with their checksum."""
    all_entries = {**json.loads(json.dumps(dict(entries))), "version": VERSION}
    root.attrs.update({OURS: {**all_entries, SEAL: digest_of(all_entries)}})


def arrays_in(group: Any) -> list[tuple[str, Any]]:
    """Return the arrays of a group by name, without coordinates."""
    return [(name, array) for name, array in group.arrays() if array.ndim > 1]


def kind_of(array: Any) -> list[Any]:
    """Return the type of an array, its number of chains, and the shape of an element, as JSON has them."""
    return [str(array.dtype), array.shape[0], *array.shape[2:]]


def entry(value: Any) -> str:
    """Return an entry of the root as text, since JSON has neither NaN nor NumPy's numbers."""
    return json.dumps(value, default=lambda number: number.item())


def entry_of(text: Any) -> Any:
    """Return the inverse of `entry`.

    Raises:
        TypeError, ValueError: when it is not what `entry` wrote.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("an entry is nested too deeply") from None
