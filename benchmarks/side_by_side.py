"""Timing of several ways of doing one thing, side by side.

A machine's speed may change by up to 2x within minutes, so times of different runs are never compared. Here every way
takes its turn in every round, and a ratio is the median over rounds of the ratio within a round. JAX fixes the number
of devices when it starts, so ways on one device and ways on two live in two processes, idle until their turn comes.

A benchmark is a script with a function `ways(options) -> {name: Way}`, called in each process, and a function that
turns the times into rows of the table; it ends with `run(...)`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

# with it every fresh process would compile the source of all libraries that have no valid bytecode
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

Times = Mapping[str, Sequence[float]]
"""Seconds per unit of work, round by round, of each way."""


@dataclass(frozen=True)
class Way:
    """A way of doing the work: `run()` does it to the end, and it is worth `units` (leapfrogs, for instance)."""

    run: Callable[[], Any]
    units: float = 1.0


@dataclass(frozen=True)
class Measured:
    """Result of a way's `run` that takes the time itself, or learns the units of its work by doing it."""

    seconds: float
    units: float


# -- the turns --------------------------------------------------------------------------------------------------------


def take_turns(script: str, arguments: Sequence[str], devices: Sequence[int], rounds: int) -> dict[str, list[float]]:
    """Time every way of `script`, in a process for each number of devices. The first round warms up and is dropped."""
    return _turns([Process(script, arguments, count) for count in devices], rounds)


def take_turns_of(
    script: str, arguments: Sequence[str], settings: Sequence[Mapping[str, str]], rounds: int
) -> dict[str, list[float]]:
    """Time every way on one device, in a process for each setting of environment variables."""
    return _turns([Process(script, arguments, 1, variables) for variables in settings], rounds)


def _turns(processes: Sequence[Process], rounds: int) -> dict[str, list[float]]:
    turns = [(process, name) for process in processes for name in process.names]
    times: dict[str, list[float]] = {name: [] for _, name in turns}
    for number in range(rounds + 1):
        for process, name in turns if number % 2 else reversed(turns):
            seconds = process.time(name)
            if number:
                times[name].append(seconds)
    for process in processes:
        process.end()
    return times


def serve(ways: Mapping[str, Way]) -> None:
    """Serve: print the names of the ways, then run the one that each line of standard input names."""
    print(json.dumps(list(ways)), flush=True)
    for line in sys.stdin:
        way = ways[line.strip()]
        began = time.perf_counter()
        done = way.run()
        if not isinstance(done, Measured):
            done = Measured(time.perf_counter() - began, way.units)
        print(done.seconds / done.units, flush=True)


class Process:
    """Process of a script that serves its ways on a number of devices, with its own environment variables."""

    def __init__(
        self,
        script: str,
        arguments: Sequence[str],
        devices: int,
        variables: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ):
        command, environment = [python, script, *arguments, "--serve-on", str(devices)], {**os.environ}
        environment |= variables or {}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.names: list[str] = json.loads(self._line())

    def time(self, name: str) -> float:
        """Return the seconds per unit of one of its ways."""
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        return float(self._line())

    def end(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()

    def _line(self) -> str:
        if line := self._process.stdout.readline():
            return line
        sys.exit(f"a benchmark process ended early, with exit status {self._process.wait()}")


# -- what came of it --------------------------------------------------------------------------------------------------


def compare(what: str, ours: str, theirs: str, times: Times, *, at_most: float, unit: str = "ms") -> dict[str, Any]:
    """Return a row of the table: the time of one way over that of another, and the interquartile range."""
    ratios = [a / b for a, b in zip(times[ours], times[theirs], strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return {
        "what": what,
        "ours": ours,
        "ours_time": round(1e3 * statistics.median(times[ours]), 3),
        "theirs": theirs,
        "theirs_time": round(1e3 * statistics.median(times[theirs]), 3),
        "unit": unit,
        "ratio": round(ratio, 3),
        "middle_half": [round(low, 3), round(high, 3)],
        "at_most": at_most,
        "met": ratio <= at_most,
    }


def fastest(times: Times, having: str) -> str:
    """Return the way of smallest median time among those with `having` in their names."""
    return min((name for name in times if having in name), key=lambda name: statistics.median(times[name]))


def arguments(description: str, *, rounds: int) -> argparse.ArgumentParser:
    """Return a parser of the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each way")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    parser.add_argument("--serve-on", type=int, help=argparse.SUPPRESS)  # set in the processes that do the timing
    return parser


def run(
    script: str,
    parser: argparse.ArgumentParser,
    devices: Sequence[int],
    ways: Callable[[argparse.Namespace], Mapping[str, Way]],
    rows: Callable[[Times], list[dict[str, Any]]],
    settings: Callable[[argparse.Namespace], dict[str, Any]],
) -> None:
    """Run a benchmark: the process that the user starts takes turns and writes, the others serve."""
    options = parser.parse_args()
    if options.serve_on:
        if options.serve_on > 1:  # a process with one device is the peers': JAX in it runs as it comes
            import phalanx as phx

            phx.use_cpu_devices(options.serve_on)
        serve(ways(options))
        return
    watch = Watch()
    times = take_turns(script, sys.argv[1:], devices, options.rounds)
    write(Path(script).stem, rows(times), settings(options), watch, options.results, times)


def save(
    name: str,
    rows: list[dict[str, Any]],
    settings: dict[str, Any],
    watch: Watch,
    folder: Path = RESULTS,
    times: Times | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Put the rows, with the settings and the machine, into `<folder>/<name>.json`.

    A run that is ended early keeps the rows saved so far.
    """
    record = {"name": name, "rows": rows, "settings": settings, "machine": machine(), **watch.look(), **more}
    if times is not None:
        record["milliseconds"] = {way: [round(1e3 * t, 3) for t in taken] for way, taken in times.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    return record


def write(*arguments: Any, **more: Any) -> None:
    """Save as `save` does, and print the rows."""
    record = save(*arguments, **more)
    if record["busy"]:
        print(f"note: other processes kept {record['cores_taken_by_others']} cores busy meanwhile")
    for row in record["rows"]:
        print(json.dumps(row))


# -- the machine ------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Return the machine's cores, processor, system, versions and commit, without its name."""
    cpu = Path("/proc/cpuinfo")
    models = (
        [line.split(":")[1].strip() for line in cpu.read_text().splitlines() if line.startswith("model name")]
        if (cpu.exists())
        else []
    )
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": models[0] if models else platform.processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("jax", "jaxlib", "numpyro", "numpy")},
        "commit": commit(),
    }


def commit() -> str | None:
    """Return the short name of the commit that is measured, with a `+` if files differ; None outside of a checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout
        changed = subprocess.run([*git, "status", "--porcelain", "../src"], check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return name.strip() + "+" * bool(changed)


class Watch:
    """Clock of a measurement, and of the cores that other processes or other guests of the machine took meanwhile."""

    def __init__(self) -> None:
        self._wall, self._all, self._own = self._now()

    def look(self) -> dict[str, Any]:
        wall, everyone, own = (now - then for now, then in zip(self._now(), self._before(), strict=True))
        others = round(max(0.0, everyone - own) / wall, 2)
        return {"seconds": round(wall, 1), "cores_taken_by_others": others, "busy": others > 0.1}

    def _before(self) -> tuple[float, float, float]:
        return self._wall, self._all, self._own

    @staticmethod
    def _now() -> tuple[float, float, float]:
        times = os.times()  # children count once they have ended
        own = times.user + times.system + times.children_user + times.children_system
        stat = Path("/proc/stat")
        if not stat.exists():
            return time.perf_counter(), own, own
        user, nice, system, _, _, irq, softirq, steal = map(int, stat.read_text().splitlines()[0].split()[1:9])
        return time.perf_counter(), (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK"), own
