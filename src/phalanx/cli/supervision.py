"""Supervision of several processes on one machine: prefix their lines, and end all when one fails."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from phalanx.mesh.failure import ENDED_BY_ANOTHER, ENDED_EARLY
from phalanx.mesh.output import STDERR, STDOUT, Output
from phalanx.mesh.processes import COORDINATOR, NUM_PROCESSES, PROCESS_ID, PROXIES

LIFELINE = "PHALANX_LIFELINE"
"""Environment variable with the number of a pipe that closes when the launcher dies."""

PAUSE = 0.05
"""Seconds between two checks of the processes."""

STOPPED_SECONDS = 10.0
"""Seconds after which a stopped process counts as failed."""

ALONE_SECONDS = 30.0
"""Seconds after which a process fails that ended with status 0 and left others: at an orderly end all end together."""

CAUSE_SECONDS = 3.0
"""Seconds to wait for the cause when a process has ended because of another one."""

GRACE_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL for those that are left after a failure."""

ABORTED = -signal.SIGABRT
"""Status of a process that JAX ends because another one died."""


@dataclass(frozen=True)
class Failure:
    """First failure of a launch.

    Attributes:
        number: number of the process.
        text: what became of it.
        status: exit status for it.
    """

    number: int
    text: str
    status: int


class Supervised:
    """Processes that run one command together.

    Args:
        command: the command.
        count: number of processes.
        environment: environment variables, to which those of a launch are added.
    """

    def __init__(self, command: Sequence[str], count: int, environment: Mapping[str, str]) -> None:
        address = f"127.0.0.1:{_free_port()}"
        common = {name: value for name, value in environment.items() if name not in PROXIES}
        common |= {COORDINATOR: address, NUM_PROCESSES: str(count), "PYTHONUNBUFFERED": "1"}
        self.signalled: int | None = None
        """Signal that the launcher received and passed on."""
        self._alive, self._lifeline = os.pipe()
        self._processes = [
            subprocess.Popen(
                command,
                env={**common, PROCESS_ID: str(number), LIFELINE: str(self._alive)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(self._alive,),
                start_new_session=True,  # Ctrl-C at the terminal reaches the launcher alone, which passes it on
            )
            for number in range(count)
        ]
        os.close(self._alive)
        self._stopped_since: dict[int, float] = {}
        self._ended_since: dict[int, float] = {}
        self._readers = [
            threading.Thread(target=_forward, args=(pipe, stream, f"[{number}] "), daemon=True)
            for number, process in enumerate(self._processes)
            for pipe, stream in ((process.stdout, STDOUT), (process.stderr, STDERR))
        ]
        for reader in self._readers:
            reader.start()

    def pass_on(self, number: int) -> None:
        """Pass a signal on to all processes; after a second one, unless it is a repeated SIGTERM, end them."""
        if self.signalled is None:
            self.signalled = number
            self._send(signal.Signals(number))
        elif (self.signalled, number) != (signal.SIGTERM, signal.SIGTERM):  # they may be saving after the first one
            self._end()

    def wait(self) -> Failure | None:
        """Wait until all have ended; end all after the first failure, and return it."""
        failure = None
        while failure is None and any(process.poll() is None for process in self._processes):
            time.sleep(PAUSE)
            failure = self._failure()
        if failure is not None and failure.status in (ENDED_BY_ANOTHER, 128 - ABORTED):
            failure = self._cause() or failure
        self._end()
        failure = failure or self._failure()
        for reader in self._readers:  # a process that a script started may hold the pipe
            reader.join(1.0)
        os.close(self._lifeline)
        return failure

    def _cause(self) -> Failure | None:
        """Return the failure that ended others, if there is one."""
        until = time.monotonic() + CAUSE_SECONDS
        while time.monotonic() < until:
            if (failure := self._failure()) is not None and failure.status not in (ENDED_BY_ANOTHER, 128 - ABORTED):
                return failure
            if self._stopped_since:
                return self._of_stopped(next(iter(self._stopped_since)))
            time.sleep(PAUSE)
        # os._exit(0) leaves no message; at an orderly end each process waits for all
        numbers = (number for number, process in enumerate(self._processes) if process.poll() == 0)
        return next((Failure(number, _text_of(ENDED_EARLY), 1) for number in numbers), None)

    def _failure(self) -> Failure | None:
        """Return a failure, rather one of a process that was not ended by another."""
        failures = [
            Failure(number, _text_of(process.returncode), _status(process.returncode))
            for number, process in enumerate(self._processes)
            if process.poll() not in (None, 0)
        ]
        failures.sort(key=lambda failure: failure.status in (ENDED_BY_ANOTHER, 128 - ABORTED))
        self._look_for_stopped()
        overdue = [n for n, since in self._stopped_since.items() if time.monotonic() - since > STOPPED_SECONDS]
        if failures or overdue:
            return failures[0] if failures else self._of_stopped(overdue[0])
        return self._of_ended_alone()

    def _of_ended_alone(self) -> Failure | None:
        """Return the failure of a process that skipped the end which all share, as `os._exit(0)` does.

        The others may wait for it in a loop that uses a processor, which no check of theirs can distinguish from work.
        """
        now = time.monotonic()
        running = False
        for number, process in enumerate(self._processes):
            if process.poll() is None:
                running = True
            else:
                self._ended_since.setdefault(number, now)
        alone = [number for number, since in self._ended_since.items() if now - since > ALONE_SECONDS]
        return Failure(alone[0], _text_of(ENDED_EARLY), 1) if running and alone else None

    def _of_stopped(self, number: int) -> Failure:
        return Failure(number, "was stopped by a signal", 128 + signal.SIGSTOP)

    def _look_for_stopped(self) -> None:
        for number, process in enumerate(self._processes):
            try:
                status = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
            except ChildProcessError:  # it has ended
                continue
            if status is not None and status.si_code == os.CLD_STOPPED:
                self._stopped_since[number] = time.monotonic()
            elif status is not None:
                self._stopped_since.pop(number, None)

    def _end(self) -> None:
        """End those that are left, first by SIGTERM, which a stopped one would not receive."""
        for number in self._stopped_since:
            self._processes[number].kill()
        self._send(signal.SIGTERM)
        until = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < until and any(process.poll() is None for process in self._processes):
            time.sleep(PAUSE)
        self._send(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)


def _forward(pipe: IO[bytes], stream: Output, prefix: str) -> None:
    with pipe:
        for line in pipe:  # read on where nothing can be written: a process would wait for room in its pipe
            stream.say(prefix + line.decode(errors="replace").rstrip("\r\n"))  # one call: threads share it


def _text_of(code: int) -> str:
    if code == ENDED_EARLY:
        return "ended before the others"
    if code > 0:
        return f"ended with status {code}"
    # real-time signals but the first and the last have no name
    return f"was ended by {signal.Signals(-code).name if -code in {*signal.Signals} else f'signal {-code}'}"


def _status(code: int) -> int:
    if code == ENDED_EARLY:
        return 1
    return code if code > 0 else 128 - code


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
