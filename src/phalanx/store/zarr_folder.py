"""Folder of draws in Zarr 3, in ArviZ's layout: it grows while a run goes on, and can be read meanwhile.

The root has the groups `posterior` and `sample_stats`; their arrays `(chain, draw, ...)` are made once, with room for
all draws. Draws of warm-up, if kept, are written in full before the first draw. Draws are valid up to the number
`committed` of the root, which is written after them; readers show no more. A chunk is written when it is full, and
before a commit; it replaces its file at once, so that a process that is killed leaves all committed draws as they were.

Several processes write the chains that they own, each to chunks of its own. The first one makes the arrays, and commits
the draws that all have written.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.extras import require
from phalanx.mesh.agreement import SharedMessages
from phalanx.mesh.chains import HeldChains
from phalanx.mesh.output import warn
from phalanx.mesh.processes import is_first
from phalanx.store.lazy_array import LazyArray, StoredArray
from phalanx.store.save_path import lock, sync
from phalanx.store.zarr_reading import (
    ARRAYS,
    OURS,
    POSTERIOR,
    STATS,
    arrays_in,
    is_zarr,
    kind_of,
    read_zarr,
    root_of,
    write_entries,
)

CHUNK_BYTES = 4 * 2**20
"""Greatest size of a chunk in memory."""


@dataclass(frozen=True)
class OwnedChains:
    """Chains that this process writes.

    Attributes:
        held: the chains that each process holds.
        at_first: true if the first process writes all chains, which it gathers from the others.
    """

    held: HeldChains
    at_first: bool = False

    @property
    def is_first(self) -> bool:
        """True in the process that makes the folder."""
        return is_first()

    @property
    def processes(self) -> int:
        """Number of processes that report what they have written."""
        return 1 + max(map(max, self.held.holders))

    @property
    def num_chains(self) -> int:
        """Chains in all."""
        return self.held.num_chains

    @property
    def unit(self) -> int:
        """Greatest number such that one process writes so many chains after each of its multiples."""
        return self.num_chains if self.at_first else self.held.unit

    @property
    def runs(self) -> tuple[slice, ...]:
        """Runs of consecutive chains that this process writes."""
        if not self.at_first:
            return self.held.owned_runs
        return (slice(0, self.num_chains),) if self.is_first else ()

    def fitting(self, lengths: Iterable[int]) -> OwnedChains:
        """Return the chains to write if chunks have so many chains: all in the first process if two would share one."""
        owners = self.held.owners
        shares_chunk = any(
            len(set(owners[begin : begin + length])) > 1
            for length in lengths
            for begin in range(0, self.num_chains, length)
        )
        return replace(self, at_first=shares_chunk)

    def of(self, draws: np.ndarray) -> np.ndarray:
        """Return the draws of the chains that this process writes, given those of the chains that it holds.

        All processes must call it together.
        """
        if not self.at_first:
            writes = self.held.writes
            return draws if writes.all() else draws[writes]
        whole = self.held.gathered(draws)
        return whole if self.is_first else whole[:0].copy()

    def read(self, array: LazyArray, draws: slice) -> np.ndarray:
        """Return draws of the chains that this process writes from an array of all chains in a store."""
        nothing = np.empty((0, draws.stop - draws.start, *array.shape[2:]), array.dtype)
        return np.concatenate([nothing, *(array[run, draws] for run in self.runs)])

    def write(self, array: Any, draws: slice, values: np.ndarray) -> None:
        """Write draws of the chains that this process writes to an array of all chains in a store."""
        first = 0
        for run in self.runs:
            last = first + run.stop - run.start
            array[run, draws] = values[first:last]
            first = last

    def chunk(self, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
        """Return the shape of a chunk: as many chains as have one writer, and as many draws as fit into `CHUNK_BYTES`.

        Draws of more than that are split, first by chains, then along their own axes, from the first one on.
        """
        chunk = [self.unit, 1, *(max(1, size) for size in shape[2:])]
        for axis in (0, *range(2, len(chunk))):
            excess = -(-itemsize * int(np.prod(chunk)) // CHUNK_BYTES)
            chunk[axis] = max(1, chunk[axis] // excess)
            while axis == 0 and self.unit < shape[0] and self.unit % chunk[0]:
                chunk[0] -= 1
        chunk[1] = min(max(1, CHUNK_BYTES // (itemsize * int(np.prod(chunk)))), shape[1])
        return tuple(chunk)

    def numbers(self, length: int) -> list[int]:
        """Return the numbers of the chunks of so many chains that this process writes."""
        return [number for run in self.runs for number in range(run.start // length, -(-run.stop // length))]


ALL_CHUNKS: Any = {"write_empty_chunks": True}
"""Setting of Zarr: chunks that contain only the fill value are written too, so a missing file means a lost chunk."""

ROOM = "room"
"""Topic of the messages between processes on the number of draws of each chain for which arrays have room."""

WRITTEN = "written"
"""The same for the number of draws of each chain that are on the disk."""

MADE = "made"
"""The same for the arrays of warm-up, once the first process has made them."""

PUT = "put"
"""The same for the draws of warm-up, once a process has written its own to the disk."""

Groups = Mapping[str, Mapping[str, np.ndarray]]
"""Arrays by group and name."""


@dataclass
class ZarrFolder:
    """Writer of a store, one of several processes that have the same folder.

    Attributes:
        path: the folder.
        called: its name in messages.
        owned: the chains whose draws this process gives to `append`.
        room: draws of each chain for which there is room.
        count: draws of each chain that were given to `append`.
        dims: names of the axes by variable; None for an axis without a name.
        coords: names of the entries by dimension; an axis without a name is `<variable>_dim_0`, ....
    """

    path: Path
    called: str
    owned: OwnedChains
    room: int = 0
    count: int = 0
    dims: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    coords: Mapping[str, np.ndarray] = field(default_factory=dict)
    is_open: bool = False
    """True once a store was made or continued."""
    _messages: SharedMessages = field(init=False)
    _arrays: dict[tuple[str, str], Any] = field(default_factory=dict)
    _tails: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    """Room for a chunk of each array; its first draws are those behind the last full chunk."""
    _written: set[Path] = field(default_factory=set)
    """Files that may not be on the disk yet."""
    _lock: int | None = None
    """Descriptor of the folder, locked for this process."""

    def __post_init__(self) -> None:
        self._messages = SharedMessages(self.called)

    # -- beginning ----------------------------------------------------------------------------------------------------

    def begin(self, entries: Mapping[str, Any]) -> None:
        """Make a new store without arrays, in the first process.

        An incomplete store of the same run and checkpoint is replaced, since no save continues its run. If it has
        committed draws, it is renamed, with a warning.

        Args:
            entries: entries of the root; `run` identifies the run, and `checkpoint` names the folder of its saves.

        Raises:
            FileExistsError: when something else is at the path.
            ValueError: when another process writes to the store.
        """
        self._messages.leave(WRITTEN, "0")
        if not self.owned.is_first:
            self.is_open = True
            return
        if entries["checkpoint"] and is_zarr(self.path):
            of_store = root_of(self.path, self.called)[1]
            same = all(of_store.get(name) == entries[name] for name in ("run", "checkpoint"))
            if same and not of_store.get("complete"):
                self._locked()
                self._set_aside(of_store["committed"]) if of_store.get("committed") else self.discard()
        if self.path.exists():
            raise FileExistsError(
                f"{self.called} exists already, and a store is never overwritten. Name a new folder; to continue its "
                f"run, repeat the call with the checkpoint= it was made with; to read it, use phx.open."
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        zarr = require("zarr")
        root = zarr.create_group(self.path, zarr_format=3, attributes={"inference_library": OURS})
        write_entries(root, entries)
        self._locked()
        self.is_open = True

    def resume(self, count: int, entries: Mapping[str, Any]) -> None:
        """Continue a store behind its first `count` draws; later ones are written anew.

        If a chunk holds chains of several processes, the first process writes all draws, and `owned` changes.

        Args:
            count: draws of each chain that the run has made.
            entries: entries of the root; `run` identifies the run.

        Raises:
            ValueError: when the store is of another run, has fewer draws, or another process writes to it.
        """
        root, of_store = root_of(self.path, self.called)
        if of_store.get("run") != entries["run"] or count > of_store.get("committed", 0):
            of = "is of this run" if of_store.get("run") == entries["run"] else "is of another run"
            raise ValueError(
                f"{self.called} {of} and has {of_store.get('committed', 0)} draws of each chain; the checkpoint "
                f"continues a run behind {count}. Give the store that the run wrote to."
            )
        if self.owned.is_first:
            self._locked()
            write_entries(root, {**of_store, **entries, "committed": count})
        self.is_open = True
        self.count = count
        self._messages.leave(WRITTEN, str(count))
        if count:
            groups = zip((POSTERIOR, STATS), read_zarr(self.path, self.called, count), strict=False)
            arrays_by_name = {(group, name): draws for group, arrays in groups for name, draws in arrays.items()}
            self.owned = self.owned.fitting({draws.stored.chunks[0] for draws in arrays_by_name.values()})
            for key, draws in arrays_by_name.items():
                array = self._arrays[key] = draws.stored.with_config(ALL_CHUNKS)
                behind = self._read_tail(draws)
                self._tails[key] = _room(array, behind)
                self._tails[key][:, : behind.shape[1]] = behind
            self._make_room(max(self.room, count))

    def _read_tail(self, draws: StoredArray) -> np.ndarray:
        """Return the committed draws of this process behind the last full chunk.

        Raises:
            ValueError: when a chunk of these or of earlier draws is missing, or one of these is damaged.
        """
        begin = draws.shape[1] - draws.shape[1] % draws.stored.chunks[1]
        try:
            for chains in self.owned.runs:  # the run's result would have the gap of a chunk that is missing
                draws.check_chunks((chains, slice(0, draws.shape[1])))
            return self.owned.read(draws, slice(begin, draws.shape[1]))
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(
                f"{self.called} is damaged, so that its run cannot continue: {str(error).rstrip('.')}. Restore the "
                f"folder from a copy; or read its other draws with phx.open, then rename it and the folder of "
                f"checkpoint=, and begin anew."
            ) from error

    def discard(self) -> None:
        """Remove the store."""
        self.close()
        shutil.rmtree(self.path)

    def _set_aside(self, committed: int) -> None:
        """Rename the store, with a warning."""
        ends = itertools.chain([""], map("-{}".format, itertools.count(2)))
        names = (self.path.with_name(f"{self.path.name}.before{end}") for end in ends)
        aside = next(name for name in names if not os.path.lexists(name))
        self.path.rename(aside)
        self.close()
        warn(
            f"{self.called} has {committed} draws of each chain of this run, and its checkpoint has no save that "
            f"continues them: the run begins anew, and the store is now {str(aside)!r}. Read it with phx.open, or "
            f"delete it.",
            stacklevel=2,
        )

    def close(self) -> None:
        """Let other processes write to the store."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None
        self.is_open = False

    def _locked(self) -> None:
        self._lock = os.open(self.path, os.O_RDONLY)
        if not lock(self._lock, self.called):
            self.close()
            raise ValueError(
                f"{self.called} is in use: another process writes to it. Name another folder, or end that process."
            )

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, groups: Groups, first: int) -> None:
        """Add draws `(chain, draw, ...)` of the chains that this process owns; full chunks are written.

        `first` is the number of the first of them. Draws that the store has are left out: a run that an error or a
        second Ctrl-C ended within a block gives its last draws again.
        """
        surplus = max(self.count - first, 0)
        groups = {group: {name: v[:, surplus:] for name, v in arrays.items()} for group, arrays in groups.items()}
        number = next(iter(groups[STATS].values())).shape[1]
        if not self._arrays and self.owned.is_first:
            self._make_arrays(groups)
        elif not self._arrays:
            self._open_arrays(self.room)
            self._tails = {(g, name): _room(array, groups[g][name]) for (g, name), array in self._arrays.items()}
        if self.count + number > self.room:
            self._make_room(max(self.count + number, 2 * self.room))
        for group, arrays in groups.items():
            for name, values in arrays.items():
                self._append(group, name, np.asarray(values))
        self.count += number

    def put(self, groups: Groups) -> None:
        """Write groups of draws `(chain, draw, ...)` of the chains that this process owns, before any others.

        They have their final size. It ends in the first process once they are on the disk in all.
        """
        if self.owned.is_first:
            groups_made = {
                group: self._make_group(group, v, next(iter(v.values())).shape[1]) for group, v in groups.items()
            }
            self._messages.leave(MADE, "")
        else:
            self._messages.awaited(MADE, of=[0])
            root, _ = root_of(self.path, self.called)
            groups_made = {group: dict(arrays_in(root[group])) for group in groups}
        for group, arrays in groups_made.items():
            for name, array in arrays.items():
                self._write(group, name, array.with_config(ALL_CHUNKS), 0, groups[group][name])
        self._sync()
        self._messages.leave(PUT, "")
        if self.owned.is_first:
            self._messages.awaited(PUT)

    def commit(self, entries: Mapping[str, Any] | None = None, of_all: bool = True) -> None:
        """Write the chunks that are not full, wait for the disk, then write the number of draws and other entries.

        The first of several processes writes the number: once all have written as many draws as it has or, if `of_all`
        is false, that of the draws which all have written so far.
        """
        self._write_tails()
        self._messages.leave(WRITTEN, str(self.count))
        if not self.owned.is_first:
            return
        counts = self._messages.left(WRITTEN)
        if of_all:
            self._messages.awaited(WRITTEN, lambda message: int(message) >= self.count)
            counts = {0: str(self.count)}
        elif len(counts) < self.owned.processes:
            return
        root, of_store = root_of(self.path, self.called)
        count = max(of_store.get("committed", 0), min(map(int, counts.values())))
        write_entries(root, {**of_store, **(entries or {}), "committed": count})
        sync(self.path / "zarr.json")
        sync(self.path)

    def fail(self, error: BaseException) -> None:
        """Report a failure of this process to the others that write."""
        self._messages.fail(error)

    def _write_tails(self) -> None:
        for (group, name), tail in self._tails.items():
            if behind := self.count % tail.shape[1]:
                array = self._arrays[group, name]
                begin = self.count - behind
                # as a whole chunk, of which Zarr reads no part: what a killed process left there may be damaged
                tail[:, behind:] = array.fill_value
                self._write(group, name, array, begin, tail[:, : array.shape[1] - begin])
        self._sync()

    def _sync(self) -> None:
        for file in self._written:
            sync(file)
        for folder in {above for file in self._written for above in file.parents if self.path in above.parents}:
            sync(folder)
        self._written.clear()

    def end(self, entries: Mapping[str, Any]) -> None:
        """Commit, and give up the room behind the last draw, so that plain readers see draws only."""
        self.commit(entries)
        if self._arrays and self.room != self.count and self.owned.is_first:
            self._make_room(self.count)

    # -- arrays -------------------------------------------------------------------------------------------------------

    def _make_arrays(self, groups: Groups) -> None:
        for group, arrays in groups.items():
            zarr_arrays = self._make_group(group, arrays, max(self.room, 1))
            self._arrays |= {(group, name): array for name, array in zarr_arrays.items()}
            self._tails |= {(group, name): _room(array, arrays[name]) for name, array in zarr_arrays.items()}
        self._messages.leave(ROOM, str(self.room))

    def _make_group(self, group: str, arrays: Mapping[str, np.ndarray], room: int) -> dict[str, Any]:
        """Make a group of arrays like these with room for so many draws of all chains, and its coordinates."""
        root, entries = root_of(self.path, self.called)
        within = root.create_group(group, attributes={"inference_library": OURS}, overwrite=True)
        zarr_arrays = {}
        for name, values in arrays.items():
            of_value = self.dims.get(name, (None,) * (values.ndim - 2))
            dims = ("chain", "draw", *(dim or f"{name}_dim_{axis}" for axis, dim in enumerate(of_value)))
            shape = (self.owned.num_chains, room, *values.shape[2:])
            zarr_arrays[name] = within.create_array(
                name,
                shape=shape,
                chunks=self.owned.chunk(shape, values.dtype.itemsize),
                dtype=values.dtype,
                fill_value=np.nan if values.dtype.kind == "f" else 0,
                dimension_names=dims,
                compressors=_codecs(),
                config=ALL_CHUNKS,
            )
            for dim, size in zip(dims, shape, strict=True):
                if dim not in within:
                    labels = self.coords.get(dim)
                    labels = np.arange(size) if labels is None or len(labels) != size else labels
                    _make_coordinate(within, dim, labels)
        self._written.update((self.path / group).rglob("*"))
        kinds = {group: {name: kind_of(array) for name, array in zarr_arrays.items()}}
        write_entries(root, {**entries, ARRAYS: {**entries.get(ARRAYS, {}), **kinds}})
        return zarr_arrays

    def _open_arrays(self, room: int) -> None:
        """Open the arrays once the first process has made them, with room for so many draws of each chain."""
        self._messages.awaited(ROOM, lambda message: int(message) >= room, of=[0])
        root, _ = root_of(self.path, self.called)
        self._arrays = {
            (group, name): array.with_config(ALL_CHUNKS)
            for group in (POSTERIOR, STATS)
            for name, array in arrays_in(root[group])
        }

    def _make_room(self, room: int) -> None:
        if not self.owned.is_first:
            self._open_arrays(room)
            self.room = room
            return
        root, _ = root_of(self.path, self.called)
        for array in self._arrays.values():
            array.resize((array.shape[0], room, *array.shape[2:]))
        for group in {group for group, _ in self._arrays}:
            draw = root[group]["draw"]
            draw.resize((room,))
            draw[:] = np.arange(room)
        self.room = room
        self._messages.leave(ROOM, str(room))

    def _append(self, group: str, name: str, values: np.ndarray) -> None:
        tail = self._tails[group, name]
        count = self.count
        size = tail.shape[1]
        while values.shape[1]:
            behind = count % size
            some = values[:, : size - behind]
            values = values[:, size - behind :]
            tail[:, behind : behind + some.shape[1]] = some
            count += some.shape[1]
            if not count % size:
                self._write(group, name, self._arrays[group, name], count - size, tail)

    def _write(self, group: str, name: str, array: Any, begin: int, values: np.ndarray) -> None:
        end = begin + values.shape[1]
        size = array.chunks[1]
        self.owned.write(array, slice(begin, end), values)
        for number in range(begin // size, -(-end // size)):
            for chains in self.owned.numbers(array.chunks[0]):
                chunk = self.path / group / name / "c" / str(chains) / str(number)
                if chunk.exists():
                    self._written.update([chunk, *chunk.rglob("*")])


def _room(array: Any, like: np.ndarray) -> np.ndarray:
    """Return room for a chunk of an array, for as many chains as an array like `like` has.

    It is filled, so that the process takes the memory now and does not grow while it runs.
    """
    return np.full((len(like), array.chunks[1], *array.shape[2:]), 0, array.dtype)


def _codecs() -> list[Any]:
    codecs = require("zarr").codecs
    # a checksum behind the compressor: a chunk with a flipped bit is refused by every reader
    return [codecs.BloscCodec(cname="zstd", clevel=3, shuffle="shuffle"), codecs.Crc32cCodec()]


def _make_coordinate(group: Any, name: str, values: np.ndarray) -> None:
    kind = str if values.dtype.kind == "U" else values.dtype
    chunks = (max(1, len(values)),)
    coordinate = group.create_array(name, shape=values.shape, chunks=chunks, dtype=kind, dimension_names=(name,))
    coordinate[:] = values
