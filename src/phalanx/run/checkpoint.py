"""Checkpoint of a run: saves it between two blocks, beside the chains, and finds what was saved.

The state is written as a value of no mesh, so that a run may be continued on another number of devices or processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
from jax.typing import ArrayLike

from phalanx.mesh.failure import all_end_by
from phalanx.mesh.fingerprint import fingerprint
from phalanx.mesh.processes import agreed, is_first
from phalanx.posterior.continuation import FromFile
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord
from phalanx.posterior.run_folder import RunFolder
from phalanx.run.host.draw_store import DrawStore
from phalanx.run.loop import Run
from phalanx.run.options import RunOptions
from phalanx.run.progress.report import RunReport
from phalanx.run.state import RunState
from phalanx.store.background import BackgroundWriter
from phalanx.store.policy import SavePolicy

LIBRARIES = ("phalanx", "jax", "jaxlib", "numpyro")
"""Libraries of which another release may draw otherwise."""

CONTENT = "the content of "
"""Prefix of the names of checksums, which messages do not show."""


@contextmanager
def checkpoint_in(policy: SavePolicy | None, store: DrawStore | None = None) -> Iterator[RunCheckpoint | None]:
    """Hold the folder of a policy in a `with` block; None for a run that is not saved. `store` may have the draws.

    Raises:
        FileExistsError: when the folder holds something else.
        ValueError: when another process writes to it.
    """
    if policy is None:
        yield None
        return
    checkpoint = RunCheckpoint(policy, store)
    if not is_first():
        yield checkpoint
        return
    with checkpoint.held():
        yield checkpoint


class RunCheckpoint:
    """Saves of a run in a folder, which a thread writes while chains move.

    Args:
        policy: the folder, and when to save.
        store: store of the draws; None if the folder has them.
    """

    def __init__(self, policy: SavePolicy, store: DrawStore | None = None):
        self.called = f"checkpoint={str(policy.folder)!r}"
        self._policy, self._folder, self._store = policy, RunFolder.of(policy.folder, self.called), store
        self._identity: Mapping[str, str] = {}
        self._contents: Mapping[str, str] = {}
        self._due, self._permanent = time.monotonic() + policy.seconds, 0
        self._writer = BackgroundWriter(policy.folder, self.called, "run")

    @property
    def folder(self) -> Path:
        """The folder."""
        return self._policy.folder

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder in a `with` block, which ends when the save under way has."""
        with self._folder.saves.locked(), self._writer.held():
            yield

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
        self._permanent = self._folder.saves.last_permanent
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
        """Save the run after a block, if it is time and no save is under way, or if a permanent save is due."""
        if report.so_far is None:
            return
        done = report.done if report.phase == "sampling" else 0
        if self._policy.passes(self._permanent, done):
            self._permanent = done
            self.save(report.so_far(), done)
        elif agreed(time.monotonic() >= self._due and self._writer.is_idle):
            self.save(report.so_far())

    @contextmanager
    def after_an_error(self, run: Run) -> Iterator[None]:
        """Save the run where a `with` block ends by an error, by Ctrl-C or by SIGTERM."""
        try:
            yield
        except BaseException as error:
            # an error of one of several processes leaves it alone: fetching the run would wait for the others
            if all_end_by(error) and run.is_whole and run.so_far is not None:
                try:
                    self.save(run.so_far())
                except Exception as failure:  # of a device without memory, for one; the first error is the user's
                    self._writer.report(failure)
            raise

    def save(self, posterior: Posterior, at: int | None = None) -> None:
        """Have a run so far written, for ever if `at` is its number of draws.

        A run whose draws are in a store is saved once these are on the disk.
        """
        self._due = time.monotonic() + self._policy.seconds
        if posterior.goes_on is None:
            return
        state = FromFile(posterior.goes_on.saved(), self._contents)  # fetched by all processes together
        if not is_first():
            return
        self._writer.wait()
        parts = {"reduced": posterior.reduced, "warmup": posterior.warmup}
        in_store = None if self._store is None else self._store.synced()
        draws, stats = (posterior.draws, posterior.stats) if in_store is None else ({}, {})

        def write() -> None:
            if in_store is not None:
                in_store.result()
            self._folder.write(self._identity, draws, stats, parts, posterior.timing, posterior.record, state, at)

        self._writer.submit(write)


def identity_of(
    record: RunRecord, thin: int, reducers: Mapping[str, str], init: Mapping[str, ArrayLike], options: RunOptions
) -> dict[str, str]:
    """Return what a saved run must share with a call that continues it: values in words, and checksums."""
    contents = {f"init[{name!r}]": fingerprint(np.asarray(value)) for name, value in init.items()}
    tuned = [] if options.tuning is None else jax.tree.leaves(options.tuning.state.tuning)
    contents["tuning"] = " ".join(fingerprint(np.asarray(leaf)) for leaf in tuned)
    names = ("model", "kernel", "num_chains", "num_warmup", "seed", "matmul_precision", "init")
    said = {name: str(getattr(record, name)) for name in names}
    for what, lines in (("data", record.data), ("variable", record.latents)):
        said |= {f"{what} {name!r}": line.partition(", rows over")[0] for name, line in lines.items()}
    said |= {f"reducer {name!r}": words for name, words in reducers.items()}
    releases = {f"the release of {name}": record.versions[name] for name in LIBRARIES}
    store = str(None if options.store is None else "a Zarr folder")
    said |= {"call": "phx.mcmc", "thin": str(thin), "store": store}
    return {**said, **releases, **{f"{CONTENT}{name}": sum_ for name, sum_ in contents.items()}}
