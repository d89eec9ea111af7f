"""Checkpoint of a run: saves it between two blocks, beside the chains, and finds what was saved.

The state is written as a value of no mesh, so that a run may be continued on another number of devices or processes.
Each process writes the draws of the chains that it owns; the first writes the rest, and commits the save.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import jax
import numpy as np
from jax.typing import ArrayLike

from phalanx.mesh.agreement import SharedMessages
from phalanx.mesh.chains import HeldChains
from phalanx.mesh.failure import all_end_by
from phalanx.mesh.fingerprint import fingerprint
from phalanx.mesh.processes import agreed, is_first
from phalanx.posterior.continuation import FromFile
from phalanx.posterior.file import WARMUP_PARTS, warmup_parts
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord
from phalanx.posterior.run_folder import NextSave, RunFolder, Together, sizes
from phalanx.posterior.together import ProcessDraws
from phalanx.run.host.draw_store import DrawStore
from phalanx.run.loop import Run
from phalanx.run.options import RunOptions
from phalanx.run.progress.report import RunReport
from phalanx.run.state import RunState
from phalanx.store.checkpoint import Checkpoint
from phalanx.store.identity import Comparison, Identity
from phalanx.store.policy import SavePolicy

IN_STORE = "a Zarr folder"
"""Entry `store` of the identity of a run with a store."""

LIBRARIES = ("phalanx", "jax", "jaxlib", "numpyro")
"""Libraries of which another release may draw otherwise."""

COMPARISON = Comparison({}, "Repeat the call that made it, or name another folder.")
"""Comparison of two runs."""


@contextmanager
def checkpoint_in(
    policy: SavePolicy | None, held_chains: HeldChains, store: DrawStore | None = None
) -> Iterator[RunCheckpoint | None]:
    """Lock the folder of a policy for a `with` block, and yield its checkpoint; None for a run that is not saved.

    The folder has the draws, unless they are in `store`.

    Raises:
        FileExistsError: when the folder holds something else.
        ValueError: when another process writes to it.
    """
    if policy is None:
        yield None
        return
    checkpoint = RunCheckpoint(policy, held_chains, store)
    with checkpoint.held():
        yield checkpoint


class RunCheckpoint(Checkpoint):
    """Saves of a run in a folder, which a thread writes while chains move.

    Args:
        policy: the folder, and when to save.
        held_chains: the chains that each process holds.
        store: store of the draws; None if the folder has them.
    """

    def __init__(self, policy: SavePolicy, held_chains: HeldChains, store: DrawStore | None = None):
        super().__init__(policy, "run", f"checkpoint={str(policy.folder)!r}")
        self._folder = RunFolder(self.saves)
        self._store = store
        self._held, self._messages = held_chains, SharedMessages(self.called)
        self._identity: Mapping[str, Any] = {}
        self._contents: Mapping[str, str] = {}

    def read(self, identity: Identity, contents: Mapping[str, str]) -> Posterior | None:
        """Return the run in the folder, with the draws of the chains that this process holds; None if it is new.

        Args:
            identity: that of the run to come, with its data and traces.
            contents: checksums of its data by name.

        Raises:
            ValueError: when the folder holds another run, or all saves are damaged.
        """
        self._identity = identity
        self._contents = contents
        save = self._folder.read(None if self._held.is_whole else self._held)
        if save is None:
            return None
        (parts, timing, record), continuation, of_save = save
        if of_save.keys() != identity.keys():
            release = of_save.get("the release of phalanx", "of another release")
            raise ValueError(
                f"{self.called} was saved by Phalanx {release}, in a form that this release does not continue. Install "
                f"that release, or name another folder."
            )
        COMPARISON.check(self.called, "run", cast("Identity", of_save), identity)
        warmup = parts.get("warmup", {})
        # its divergences are counted when the run has continued
        has_draws = parts["stats"] or parts.get("warmup_stats")
        held_draws = ProcessDraws(self._held, 0) if has_draws and not self._held.is_whole else None
        return Posterior(
            parts["draws"],
            parts["stats"],
            timing,
            record,
            parts["reduced"],
            warmup,
            continuation=continuation,
            held_draws=held_draws,
            **warmup_parts(parts),
        )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Name the folder in what is raised about the run that it holds."""
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{self.called} holds another run: {str(error).removeprefix('continue_run: ')}") from error

    def iterations_left(self, before: Posterior, state: RunState, num_samples: int) -> int:
        """Return the iterations per chain that a saved run still has to make.

        Raises:
            ValueError: when it has made more.
        """
        num_draws = state.arguments.thin * max(state.stored.count, state.reduced.draws)
        if num_draws > num_samples:
            raise ValueError(
                f"it has made {num_draws} iterations, and num_samples={num_samples} are asked for. Ask for at least "
                f"{num_draws}, or load it with phx.Posterior.load."
            )
        # a condition of `until` ended it
        has_ended = before.record.num_samples == num_samples and not before.record.interrupted
        return 0 if has_ended and not state.in_warm_up else num_samples - num_draws

    def offer(self, report: RunReport) -> None:
        """Save the run after a block, if it is time and no save is under way, or if a permanent save is due."""
        num_draws = report.done if report.phase == "sampling" else 0
        if report.so_far is not None and self.is_due(num_draws):
            self.save(self._made_by(report.so_far), self.permanent_at(num_draws))

    @contextmanager
    def after_an_error(self, run: Run) -> Iterator[None]:
        """Save the run where a `with` block ends by an error, by Ctrl-C or by SIGTERM."""
        try:
            yield
        except BaseException as error:
            # an error of one of several processes leaves it alone: fetching the run would wait for the others
            with run.interrupts.saving():
                if all_end_by(error) and run.can_continue and run.so_far is not None:
                    try:
                        self.end(self._made_by(run.so_far))
                    except Exception as failure:  # of a device without memory, for one; the first error is the user's
                        self._writer.report(failure)
            raise

    def _made_by(self, so_far: Callable[..., Posterior]) -> Posterior:
        """Return the unfinished run, without waiting for its store to have the draws."""
        posterior = so_far() if self._store is None else so_far(with_draws=False)
        return replace(posterior, record=replace(posterior.record, interrupted=True))

    def save(self, posterior: Posterior, at: int | None = None) -> None:
        """Queue a save of the run, permanent if `at` is its number of draws; all processes must call it together.

        A run whose draws are in a store is saved once these are on the disk, for which the thread waits.
        """
        self.note(at)
        if posterior.continuation is None:
            return
        state = FromFile(posterior.continuation.saved(), self._contents)  # fetched by all processes together
        self._writer.wait()
        parts = {"reduced": posterior.reduced, "warmup": posterior.warmup}
        if self._store is None:
            parts |= {name: getattr(posterior, name) for name in WARMUP_PARTS}
        in_store = None if self._store is None else self._store.synced()
        draws, stats = (posterior.draws, posterior.stats) if in_store is None else ({}, {})
        together = None if jax.process_count() == 1 else self._together(sizes(stats)[1])

        def write() -> None:
            if in_store is not None:
                in_store.result()
            self._folder.write(
                self._identity, draws, stats, parts, posterior.timing, posterior.record, state, at, together
            )

        def write_own() -> None:
            assert together is not None
            topic = f"save {together.next.number}"
            entries = []
            try:
                if in_store is not None:
                    in_store.result()
                entries = together.next.write_draws(self.saves.folder, draws, stats, parts, self._held)
            except Exception as failure:
                self._messages.leave(topic, json.dumps(str(failure)))
                raise
            self._messages.leave(topic, json.dumps(entries))

        self._writer.submit(write if is_first() else write_own)

    def end_run(self, run: Run, posterior: Posterior) -> None:
        """Save a run that has ended; SIGTERM waits until that is done."""
        with run.interrupts.saving():
            self.end(posterior)

    def end(self, posterior: Posterior) -> None:
        """Save a run that has ended, and wait in all processes until it is on the disk: they may read it next."""
        self.save(posterior)
        self._writer.wait()
        agreed(np.bool_(True))

    def _together(self, draws: int) -> Together:
        """Return the next save, of which the first process knows the place, given the draws of each chain."""
        next_save = self._folder.next(draws) if is_first() else NextSave(0, 0, 0)
        save = NextSave(*map(int, agreed(np.array(next_save, np.int32))))
        return Together(self._held, save, lambda: self._written_by_others(f"save {save.number}"))

    def _written_by_others(self, topic: str) -> list[tuple[list[Any], list[Any]]]:
        """Return the entries of the files of draws that each of the other processes has written.

        Raises:
            OSError: when a process could not write its file.
        """
        self._messages.leave(topic, "[[], []]")
        manifests = [json.loads(message) for message in self._messages.awaited(topic)]
        self._messages.forget(topic)
        for number, entries in enumerate(manifests):
            if isinstance(entries, str):
                raise OSError(f"process {number}: {entries}")
        return manifests


def identity_of(
    record: RunRecord, thin: int, reducers: Mapping[str, str], init: Mapping[str, ArrayLike], options: RunOptions
) -> Identity:
    """Return what a saved run must share with a call that continues it, without its data and traces."""
    contents = {f"init[{name!r}]": fingerprint(np.asarray(value)) for name, value in init.items()}
    tuning_leaves = [] if options.tuning is None else jax.tree.leaves(options.tuning.state.tuning)
    contents["tuning"] = " ".join(fingerprint(np.asarray(leaf)) for leaf in tuning_leaves)
    names = ("model", "kernel", "num_chains", "num_warmup", "seed", "matmul_precision", "init")
    settings = {name: str(getattr(record, name)) for name in names}
    for what, lines in (("data", record.data), ("variable", record.latents)):
        settings |= {f"{what} {name!r}": line.partition(", rows over")[0] for name, line in lines.items()}
    settings |= {f"reducer {name!r}": text for name, text in reducers.items()}
    settings |= {f"the release of {name}": record.versions[name] for name in LIBRARIES}
    store = str(None if options.store is None else IN_STORE)
    settings |= {"call": "phx.mcmc", "thin": str(thin), "store": store, "save_warmup": str(bool(options.save_warmup))}
    return Identity(said=settings, contents={**contents}, traces={}, releases={})
