"""Store of a run's draws: a thread of each process writes those of its chains to a Zarr folder while chains move."""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.diagnostics.exchange import check_dimensions, in_arviz_names
from phalanx.inputs.axis_names import as_coordinate
from phalanx.mesh.chains import HeldChains
from phalanx.mesh.processes import agreed
from phalanx.posterior.each.stored_sets import Sets, blanked
from phalanx.posterior.opening import in_our_names
from phalanx.posterior.record import RunRecord, Timing
from phalanx.run.state import RunState
from phalanx.store.identity import Identity
from phalanx.store.lazy_array import StoredArray
from phalanx.store.stored_names import stored_names
from phalanx.store.zarr_folder import OwnedChains, ZarrFolder
from phalanx.store.zarr_reading import POSTERIOR, STATS, WARM_UP, entry, read_warm_up, read_zarr

SECONDS = 5.0
"""Seconds between two times at which readers are shown new draws."""

WAITING = 2
"""Blocks that may wait for the disk; chains wait before there are more, so that memory stays bounded."""


@contextmanager
def store_at(path: str | PathLike[str] | None, *arguments: Any) -> Iterator[DrawStore | None]:
    """Yield a `DrawStore` with these arguments for a `with` block; None without a path: draws stay in memory."""
    if path is None:
        yield None
        return
    store = DrawStore(path, *arguments)
    with store.writing():
        yield store


class DrawStore:
    """Store of a run's draws.

    Args:
        path: the folder.
        room: draws of each chain that the run makes at most.
        record: record of the run to come.
        names: names of the stored variables.
        held_chains: the chains that each process holds.
        sets: data sets of a run on many, whose chains follow each other; None of a run on one.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        room: int,
        record: RunRecord,
        names: tuple[str, ...],
        held_chains: HeldChains,
        sets: Sets | None = None,
    ):
        self.called = f"store={str(path)!r}"
        self._record = record
        check_dimensions(self.called, names)
        self._names = stored_names(names, Path(path))
        self._stored_names = {stored_name: name for name, stored_name in self._names.items()}
        dim_names = (dim for axes in record.dims.values() for dim in axes if dim)
        of_dims = stored_names([*record.coords, *dim_names], Path(path))
        dims = {
            self._names[name]: tuple(dim and of_dims[dim] for dim in axes)
            for name, axes in record.dims.items()
            if name in self._names
        }
        coords = {of_dims[dim]: as_coordinate(labels) for dim, labels in record.coords.items()}
        coords |= {} if sets is None else {"chain": sets.labels(held_chains.num_chains // len(sets.names))}
        self.sets = sets
        self._folder = ZarrFolder(Path(path), self.called, OwnedChains(held_chains), room, dims=dims, coords=coords)
        self._thread = ThreadPoolExecutor(1, "phalanx-store")
        self._waiting: deque[Future[Any]] = deque()
        self._failure: BaseException | None = None
        """First failure of the thread, after which it writes no more: draws behind a gap would be in wrong places."""
        self._due = time.monotonic() + SECONDS
        self._is_new = False

    def begin(self, identity: Identity, checkpoint: Path | None) -> None:
        """Make the folder.

        Args:
            identity: identity of the run, from `phalanx.run.checkpoint.identity_of`.
            checkpoint: folder of its saves; None without.
        """
        self._folder.begin(self._first_entries(identity, checkpoint))
        self._is_new = checkpoint is None and self._folder.owned.is_first

    def resume(self, identity: Identity, checkpoint: Path | None, count: int) -> None:
        """Continue the folder behind its first `count` draws of each chain."""
        self._folder.resume(count, self._first_entries(identity, checkpoint))

    def _first_entries(self, identity: Identity, checkpoint: Path | None) -> dict[str, Any]:
        of_run = [identity["said"], identity["contents"]]  # programs may have no digest
        run = hashlib.sha256(json.dumps(of_run, sort_keys=True).encode()).hexdigest()
        entries = self._entries(self._record, Timing(), {})
        saves = "" if checkpoint is None else str(checkpoint.resolve())
        return {"run": run, "checkpoint": saves, "names": entry(self._stored_names), **entries, "complete": False}

    def take_warm_up(self, draws: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray]) -> None:
        """Write the draws of a complete warm-up, and their statistics, before any others."""
        groups = {f"{WARM_UP}{group}": arrays for group, arrays in self._owned(draws, stats).items()}
        self._write(lambda: self._folder.put(groups))

    def take(self, state: RunState) -> RunState:
        """Return the state without the draws that every chain has; each process writes those of its chains."""
        draws, stats = state.stored.common_draws
        if not stats or not next(iter(stats.values())).shape[1]:
            return state
        stats["step_size"] = step_sizes(state, stats)
        if self.sets is not None and (failed_chains := self.sets.failed_chains(len(stats["energy"]))):
            draws, stats = ({name: blanked(v, failed_chains) for name, v in of.items()} for of in (draws, stats))
        groups = self._owned(draws, stats)
        first = state.stored.moved
        self._write(lambda: self._folder.append(groups, first))
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + SECONDS
            self._write(self._commit_written)
        return state._replace(stored=state.stored.surplus.copy_draws())

    def _owned(
        self, draws: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray]
    ) -> dict[str, dict[str, np.ndarray]]:
        """Return draws and statistics of the chains that this process writes, by group and name."""
        owned = self._folder.owned.of
        return {
            POSTERIOR: {self._names[name]: owned(draws[name]) for name in self._names},
            STATS: in_arviz_names({name: owned(values) for name, values in stats.items()}),
        }

    def synced(self) -> Future[Any]:
        """Return a promise that all draws so far are on the disk; in the first process, those of all processes.

        It holds no draws, so that chains need not wait for room among the blocks.
        """
        return self._thread.submit(self._run, self._commit)

    def read(self) -> tuple[Mapping[str, StoredArray], Mapping[str, StoredArray]]:
        """Return the draws and statistics so far, the same in all processes, which must call it together."""
        self._together(self._commit)
        draws, stats, _ = read_zarr(self._folder.path, self.called, self._folder.count)
        return in_our_names(draws, stats, self._stored_names)

    def read_warm_up(self) -> tuple[Mapping[str, StoredArray], Mapping[str, StoredArray]]:
        """Return the draws of warm-up and their statistics, after `read`; empty if they were discarded."""
        return in_our_names(*read_warm_up(self._folder.path, self.called), self._stored_names)

    def end(self, record: RunRecord, timing: Timing, warmup: Mapping[str, np.ndarray]) -> None:
        """Complete the store; all processes must call it together."""
        entries = {**self._entries(record, timing, warmup), "complete": not record.interrupted}
        self._together(lambda: self._folder.end(entries))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep the store open in a `with` block; draws that wait are written at its end, also after an error.

        A new store without draws is removed after an error.
        """
        try:
            with self._thread:
                try:
                    yield
                except BaseException:
                    if self._folder.is_open:  # an error of this would hide the one under way
                        self._thread.submit(self._run, self._commit_written)
                    raise
        except BaseException:
            if self._folder.is_open and self._is_new and not self._folder.count:
                self._folder.discard()
            raise
        finally:
            self._folder.close()

    def _entries(self, record: RunRecord, timing: Timing, warmup: Mapping[str, np.ndarray]) -> dict[str, str]:
        course = {name: values.tolist() for name, values in warmup.items()}
        return {
            **self._of_sets(),
            "record": entry(asdict(record)),
            "timing": entry(asdict(timing)),
            "warmup": entry(course),
        }

    def _of_sets(self) -> dict[str, str]:
        return {} if self.sets is None else self.sets.entries()

    def _commit(self) -> None:
        self._folder.commit(self._of_sets())

    def _commit_written(self) -> None:
        self._folder.commit(self._of_sets(), of_all=False)

    def _together(self, job: Callable[[], Any]) -> None:
        """Do a job in the threads of all processes, and raise in all where it fails in the first."""
        failure = None
        try:
            self._result(self._write(job))
        except OSError as error:
            failure = error
        if bool(agreed(np.bool_(failure is not None))) or failure is not None:
            raise failure or OSError(f"{self.called} cannot be written; the message of process 0 says why.")

    def _write(self, job: Callable[[], Any]) -> Future[Any]:
        while len(self._waiting) >= WAITING or (self._waiting and self._waiting[0].done()):
            self._result(self._waiting.popleft())
        future = self._thread.submit(self._run, job)
        self._waiting.append(future)
        return future

    def _run(self, job: Callable[[], Any]) -> Any:
        if self._failure is not None:
            raise self._failure
        try:
            return job()
        except BaseException as error:
            self._failure = error
            self._folder.fail(error)
            raise

    def _result(self, future: Future[Any]) -> Any:
        try:
            return future.result()
        except OSError as error:
            raise OSError(
                f"{self.called} cannot be written ({error}). It holds all draws that were committed before; read them "
                f"with phx.open. Make room on the disk, or restore the right to write to the folder."
            ) from error


def step_sizes(state: RunState, stats: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the step size as a statistic `(chain, draw)`, which blocks do not record.

    In a run on many data sets, the tuning has an entry for each.
    """
    shape = stats["energy"].shape
    step_size = np.asarray(state.tuning.step_size)
    of_chains = np.repeat(step_size, shape[0] // max(step_size.size, 1)) if step_size.ndim else step_size
    return np.array(np.broadcast_to(of_chains[..., None], shape))


def warmup_step_sizes(state: RunState, stats: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the step size of each draw of a complete warm-up, `(chain, draw)`: that of its round."""
    ends = [of_round["iteration"] for of_round in state.rounds]
    of_draws = np.repeat([of_round["step_size"] for of_round in state.rounds], np.diff(ends, prepend=0))
    return np.tile(of_draws, (len(stats["energy"]), 1)).astype(np.asarray(state.tuning.step_size).dtype)
