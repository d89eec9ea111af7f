"""Checkpoint of a run: saves it between two blocks every few seconds, beside the chains, and finds what was saved.

The state is written as a value of no mesh, so that a run may be continued on another number of devices or processes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import jax

from phalanx.mesh.processes import agreed, is_first
from phalanx.posterior.continuation import FromFile
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord
from phalanx.posterior.run_folder import RunFolder
from phalanx.run.host.draw_store import DrawStore
from phalanx.run.loop import Run
from phalanx.run.progress.report import RunReport
from phalanx.run.state import RunState

SECONDS = 10.0
"""Seconds between two saves."""

LIBRARIES = ("phalanx", "jax", "jaxlib", "numpyro")
"""Libraries of which another release may draw otherwise."""

CONTENT = "the content of "
"""Prefix of the names of checksums, which messages do not show."""


@contextmanager
def checkpoint_in(folder: str | PathLike[str] | None, store: DrawStore | None) -> Iterator[RunCheckpoint | None]:
    """Hold a folder in a `with` block; None for a run that is not saved. `store` has the draws, if there is one.

    Raises:
        FileExistsError: when the folder holds something else.
        ValueError: when another process writes to it.
    """
    if folder is None:
        yield None
        return
    checkpoint = RunCheckpoint(folder, store)
    if not is_first():
        yield checkpoint
        return
    with checkpoint.held():
        yield checkpoint


class RunCheckpoint:
    """Saves of a run in a folder, which a thread writes while chains move.

    Args:
        folder: the folder.
        store: store of the draws; None if the folder has them.
    """

    def __init__(self, folder: str | PathLike[str], store: DrawStore | None = None):
        self.store = store
        self.called = f"checkpoint={str(folder)!r}"
        self._folder = RunFolder.of(Path(folder), self.called)
        self._identity: Mapping[str, str] = {}
        self._contents: Mapping[str, str] = {}
        self._due = time.monotonic() + SECONDS
        self._thread = ThreadPoolExecutor(1, "phalanx-checkpoint")
        self._writing: Future[None] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder in a `with` block, which ends when the save under way has."""
        with self._folder.saves.locked(), self._thread:
            try:
                yield
            finally:
                self._wait()

    def read(self, identity: Mapping[str, str], contents: Mapping[str, str]) -> Posterior | None:
        """Return the run in the folder; None of a new one.

        Args:
            identity: that of the run to come, from `identity_of`.
            contents: checksums of its data by name.

        Raises:
            ValueError: when the folder holds another run, or all saves are damaged.
        """
        self._identity = {**identity, **{f"{CONTENT}{name}": checksum for name, checksum in contents.items()}}
        self._contents, found = contents, self._folder.read()
        if found is None:
            return None
        (parts, timing, record), goes_on, known = found
        differs = [
            f"{name} differs" if name.startswith(CONTENT) else f"{name} is {known.get(name)} there, and {value} here"
            for name, value in self._identity.items()
            if str(known.get(name)) != value
        ]
        if differs:
            raise ValueError(
                f"{self.called} holds another run: {'; '.join(differs)}. Repeat the call that made it, or name another "
                f"folder."
            )
        warmup = parts.get("warmup", {})
        return Posterior(parts["draws"], parts["stats"], timing, record, parts["reduced"], warmup, goes_on=goes_on)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Name the folder in what is raised about the run that it holds."""
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{self.called} holds another run: {str(error).removeprefix('continue_run: ')}") from error

    def left(self, before: Posterior, state: RunState, num_samples: int) -> int:
        """Return the iterations per chain that a saved run still has to make.

        Raises:
            ValueError: when it has made more.
        """
        drawn = state.aim.thin * max(state.stored.count, state.reduced.draws)
        if drawn > num_samples:
            raise ValueError(
                f"it has made {drawn} iterations, and num_samples={num_samples} are asked for. Ask for at least "
                f"{drawn}, or load it with phx.Posterior.load."
            )
        # a condition of `until` ended it
        has_ended = before.record.num_samples == num_samples and not before.record.interrupted
        return 0 if has_ended and not state.in_warm_up else num_samples - drawn

    def offer(self, report: RunReport) -> None:
        """Save the run after a block, if it is time and no save is under way."""
        is_idle = self._writing is None or self._writing.done()
        if report.so_far is not None and agreed(time.monotonic() >= self._due and is_idle):
            self.save(report.so_far())

    @contextmanager
    def after_an_error(self, run: Run) -> Iterator[None]:
        """Save the run where a `with` block ends by an error, by Ctrl-C or by SIGTERM."""
        try:
            yield
        except BaseException as error:
            # an error of one of several processes leaves it alone: fetching the run would wait for the others
            all_end = jax.process_count() == 1 or isinstance(error, KeyboardInterrupt | SystemExit)
            if all_end and run.is_whole and run.so_far is not None:
                try:
                    self.save(run.so_far())
                except Exception as failure:  # of a device without memory, for one; the first error is the user's
                    self._report(failure)
            raise

    def save(self, posterior: Posterior) -> None:
        """Have a run so far written; one whose draws are in a store, as soon as these are on the disk."""
        self._due = time.monotonic() + SECONDS
        if posterior.goes_on is None or not is_first():
            return
        self._wait()
        parts = {"reduced": posterior.reduced, "warmup": posterior.warmup}
        state = FromFile(posterior.goes_on.saved(), self._contents)
        in_store = None if self.store is None else self.store.synced()
        draws, stats = (posterior.draws, posterior.stats) if in_store is None else ({}, {})

        def write() -> None:
            if in_store is not None:
                in_store.result()
            self._folder.write(self._identity, draws, stats, parts, posterior.timing, posterior.record, state)

        self._writing = self._thread.submit(write)

    def _wait(self) -> None:
        """Wait for the save under way; one that fails is reported, and the run goes on."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            writing.result()
        except Exception as failure:  # a disk's, or of a user's reducer whose results no file can hold
            self._report(failure)

    def _report(self, failure: Exception) -> None:
        advice = " Make room on the disk, or restore the right to write to the folder."
        warnings.warn(
            f"{self.called}: a save failed ({failure}); the save before it is unharmed, and the run continues."
            f"{advice if isinstance(failure, OSError) else ''}",
            stacklevel=3,
        )


def identity_of(
    record: RunRecord, thin: int, reducers: Mapping[str, str], contents: Mapping[str, str]
) -> dict[str, str]:  # fmt: skip
    """Return what a saved run must share with a call that continues it: values in words, and checksums."""
    names = ("model", "kernel", "num_chains", "num_warmup", "seed", "matmul_precision", "init")
    said = {name: str(getattr(record, name)) for name in names}
    for what, lines in (("data", record.data), ("variable", record.latents)):
        said |= {f"{what} {name!r}": line.partition(", rows over")[0] for name, line in lines.items()}
    said |= {f"reducer {name!r}": words for name, words in reducers.items()}
    releases = {f"the release of {name}": record.versions[name] for name in LIBRARIES}
    return {**said, "thin": str(thin), **releases, **{f"{CONTENT}{name}": sum_ for name, sum_ in contents.items()}}
