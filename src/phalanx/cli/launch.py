"""Command `phalanx launch -n 2 SCRIPT.py ARGS...`, which runs a script in several processes on this machine."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.supervision import Failure, Supervised
from phalanx.mesh.output import STDERR

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Options behind the script are the script's."""


def launch(
    script: Annotated[Path, typer.Argument(help="The Python script.", exists=True, dir_okay=False)],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    processes: Annotated[int, typer.Option("-n", "--processes", min=1, help="Number of processes.")] = 2,
    devices_per_process: Annotated[int | None, typer.Option(min=1, help="CPU devices of each process.")] = None,
    restarts: Annotated[int, typer.Option(min=0, help="Times to start again after a failure.")] = 0,
) -> int:
    """Run a script in several processes on this machine, which share one run; the first failure ends all."""
    command = [sys.executable, "-m", "phalanx.cli.launched_script", str(script), *(arguments or [])]
    environment = {"JAX_PLATFORMS": "cpu", **os.environ}
    if devices_per_process is not None:
        environment["JAX_NUM_CPU_DEVICES"] = str(devices_per_process)
    status = 0
    for restart in range(restarts + 1):
        if restart:
            _say(f"restart {restart} of {restarts}.")
        failure, signalled = _run(command, processes, environment)
        if failure is None:
            return 0
        if signalled is not None:
            _say(f"ended by {signal.Signals(signalled).name}.")
            return 128 + signalled
        _say(f"process {failure.number} {failure.text}; the others were ended.")
        status = failure.status
    return status


def _run(command: list[str], processes: int, environment: dict[str, str]) -> tuple[Failure | None, int | None]:
    """Return the first failure of a launch, and the signal that this process received."""
    supervised = Supervised(command, processes, environment)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda received, _: supervised.pass_on(received))
    try:
        return supervised.wait(), supervised.signalled
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    STDERR.say(f"phalanx: launch: {text}")
