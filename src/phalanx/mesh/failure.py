"""Failure of one of several processes, which ends the others: they would wait for it for ever.

A process that fails leaves a message in a store that all processes share; a thread in each of the others reads it,
prints one line, and ends its process. A process that dies or is stopped leaves none: JAX ends the others when its
heartbeat stops, and the thread says beforehand which process is silent. A process that ends normally may leave others
that wait for it in an operation on all devices; one that has stood still for a minute since ends all.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

import jax

from phalanx.mesh.compatibility.shared_store import SharedStore
from phalanx.mesh.output import STDERR, STDOUT

ENDED_BY_ANOTHER = 75
"""Exit status of a process that ends because another one failed."""

ENDED_EARLY = 76
"""Exit status of a process that has ended normally while another one waited for it."""

BEAT = 1.0
"""Seconds between two signs of life of a process."""

SILENCE = 4.0
"""Seconds without a sign of life after which a process counts as silent: fewer than JAX waits for its heartbeat."""

PATIENCE = 60.0
"""Seconds that a process waits at its end for others before it says so, and that one of these may stand still."""

IDLE = 0.05
"""Share of a core below which a process stands still: its signs of life take about 0.01."""

FAILED, ALIVE, ENDED = "failed", "alive", "ended"
"""Keys of the store: the first failure, and folders with an entry for each process."""


class AgreedInterrupt(KeyboardInterrupt):
    """Ctrl-C that all processes raise at the same place, so that each ends by itself."""


class AgreedExit(SystemExit):
    """End by SIGTERM that all processes raise at the same place, so that they can save together."""


def all_end_by(error: BaseException) -> bool:
    """Return whether an exception ends all processes at the same place: one that ends alone cannot save with others."""
    return jax.process_count() == 1 or isinstance(error, AgreedInterrupt | AgreedExit)


class Peers:
    """The other processes of a run, seen from one.

    Args:
        store: the store that all share.
        number: number of this process.
        count: number of processes.
    """

    def __init__(self, store: SharedStore, number: int, count: int) -> None:
        self._store = store
        self._number = number
        self._count = count
        self._stopped = threading.Event()
        self._is_ending = False
        self._said: set[str] = set()
        self._threads = [
            threading.Thread(target=loop, name=f"phalanx-{loop.__name__.strip('_')}", daemon=True)
            for loop in (self._beat, self._listen)
        ]

    def watch(self) -> None:
        """Begin to watch the others, and have an uncaught exception of this process end them."""
        self._before, sys.excepthook = sys.excepthook, self._on_exception
        atexit.register(self._finish)
        for thread in self._threads:
            thread.start()

    def fail(self, message: str, status: int = 1) -> NoReturn:
        """End this process, and all others with a line that says why."""
        with suppress(ConnectionError, jax.errors.JaxRuntimeError):  # the first process is gone: all end
            if self._store.get(FAILED, 0.01) is None:
                self._store.set(FAILED, json.dumps([self._number, message]))
        self._exit(status)

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._is_ending:  # another thread ends this process, and has said why
            time.sleep(2 * BEAT)
        self._before(kind, error, trace)
        if isinstance(error, AgreedInterrupt):
            return
        first, *_ = str(error).splitlines() or [""]
        message = f"failed: {kind.__name__}{': ' * bool(first)}{first}"
        try:
            if isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in first:  # as where another process died
                self._end_if_another_did()
        except (ConnectionError, jax.errors.JaxRuntimeError):
            self._end_with("process 0 cannot be reached")
        self.fail(message, 130 if isinstance(error, KeyboardInterrupt) else 1)

    def _end_if_another_did(self) -> None:
        before = self._store.under(ALIVE)
        self._end_by(self._store.get(FAILED, SILENCE))
        after = self._store.under(ALIVE)
        if silent := [number for number, beat in before.items() if after.get(number) == beat]:
            self._end_by(json.dumps([int(silent[0]), "no longer responds"]))

    def _end_by(self, message: str | None) -> None:
        """End this process if the message is of another one."""
        if message is None:
            return
        number, text = json.loads(message)
        if number != self._number:
            self._end_with(f"process {number} {text}")

    def _end_with(self, message: str) -> NoReturn:
        self._say(f"{message}. Process {self._number} ends, too")
        self._exit(ENDED_BY_ANOTHER)

    def _exit(self, status: int) -> NoReturn:
        """End this process at once: a normal end would wait for the others."""
        self._is_ending = True
        if self._number == 0:  # with it the store ends, which the others have to read
            time.sleep(BEAT)
        STDOUT.flush()
        STDERR.flush()
        os._exit(status)

    def _say(self, message: str) -> None:
        """Print a line, once."""
        if message not in self._said:
            self._said.add(message)
            STDERR.say(f"phalanx: {message}.")

    def _beat(self) -> None:
        for beat in range(2**62):
            try:
                self._store.set(f"{ALIVE}/{self._number}", str(beat))
            except jax.errors.JaxRuntimeError:  # `_listen` reports it
                return
            if self._stopped.wait(BEAT):
                return

    def _listen(self) -> None:
        last_beats: dict[str, tuple[str, float]] = {}
        last = last_change = time.monotonic()
        cpu_seconds = time.process_time()
        while not self._stopped.is_set():
            try:
                self._end_by(self._store.get(FAILED, BEAT))
                beats = self._beats()
                end_times = self._store.under(ENDED)
            except ConnectionError:
                if self._stopped.wait(BEAT) or not self._store.is_open:
                    return
                self._end_with("process 0 cannot be reached")
            now = time.monotonic()
            stands_still = time.process_time() - cpu_seconds < IDLE * (now - last) and not _has_children()
            if not end_times or str(self._number) in end_times or not stands_still:
                last_change = now
            elif now - last_change > PATIENCE:
                self._end_for(min(end_times, key=lambda number: float(end_times[number])))
            last = now
            cpu_seconds = time.process_time()
            last_beats |= {
                n: (beat, now) for n, beat in beats.items() if n not in last_beats or last_beats[n][0] != beat
            }
            for number in (n for n, (_, since) in last_beats.items() if now - since > SILENCE):
                self._say(f"process {number} has not responded for {SILENCE:.0f} s; it may be dead or stopped")

    def _end_for(self, early: str) -> NoReturn:
        """End all, since this process waits for one that has ended."""
        text = f"has ended early, and process {self._number} has stood still for {PATIENCE:.0f} s since"
        message = json.dumps([int(early), text])
        with suppress(ConnectionError, jax.errors.JaxRuntimeError):
            self._store.set(FAILED, message)
        self._end_with(f"process {early} {text}")

    def _beats(self) -> Mapping[str, str]:
        """Return the signs of life to watch: the first process watches all, and all watch the first."""
        if self._number == 0:
            return self._store.under(ALIVE)
        return {"0": self._store.get(f"{ALIVE}/0", BEAT) or ""}  # a stopped process does not answer

    def _finish(self) -> None:
        """Wait at the normal end of this process for that of the others; then stop watching."""
        began = time.monotonic()
        try:
            self._store.set(f"{ENDED}/{self._number}", str(time.time()))
            while self._store.is_open and len(ended_processes := self._store.under(ENDED)) < self._count:
                if (message := self._store.get(FAILED, 0.01)) is not None:
                    self._end_by(message)
                    self._exit(ENDED_EARLY)  # the message names this process
                if time.monotonic() - began > PATIENCE:
                    others = ", ".join(sorted(set(map(str, range(self._count))) - set(ended_processes), key=int))
                    self._say(f"process {self._number} has ended, and waits for process {others}")
                time.sleep(0.1)
        except (ConnectionError, jax.errors.JaxRuntimeError):  # JAX has left the others, or they are gone
            pass
        self._stopped.set()
        for thread in self._threads:  # one within JAX's code would crash the interpreter's end
            thread.join(3 * BEAT)


def _has_children() -> bool:
    """Return whether a program runs that this process has started, and may wait for."""
    with suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False
