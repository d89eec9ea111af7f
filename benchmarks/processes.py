"""Several processes: failures in a run of four, kill -9 in runs of two, and the speed of two on chains.

In a failure one of four processes raises an error, ends, is killed or is stopped in the middle of a run, and the time
until all have ended and the line that reports it are kept. Kills fall at random moments on one or on all of two
processes that save and store; the command is repeated until it ends, and its draws, and those of the store, are
compared bit for bit with those of a run of two that was never interrupted. Chains are drawn by one process on one core,
and twice as many by two with a core each, in turns.

The parts may be run apart, by `--only`; the other parts of the results are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import kills as single
import numpy as np
import side_by_side
import soak
from saves_cost import SIGMA, Y, regression, schools

WAYS = ("raise", "exit", "SIGKILL", "SIGKILL of the first", "SIGSTOP", "SIGSTOP of the first")
"""Failures of one process of four: of the last one, unless it is the first."""

END_SECONDS = 20.0
"""Seconds within which all processes have ended after one has failed."""

AT_LEAST = 0.95
"""Least part of twice the speed of one process that two have, with a core each."""

AT_START = 0.2
"""Share of the kills that fall before the first block."""

SIZES: dict[str, Any] = {"num_warmup": 60, "num_samples": 400}
"""Iterations of the runs of two that are killed: fewer than those of one process, whose blocks are quicker."""

LANES, COLUMNS = 32, 100
"""Chains of each process whose speed is measured, and columns of their regression."""

# -- what a process does -----------------------------------------------------------------------------------------------


def fail(folder: str, way: str) -> None:
    """Draw, and fail in the middle."""
    import jax

    import phalanx as phx

    number = 0 if way.endswith("first") else jax.process_count() - 1

    def on_block(report: Any) -> None:
        if report.done < 1_000 or jax.process_index() != number:
            return
        Path(folder, "failed-at").write_text(str(time.time()))
        if way == "raise":
            raise ValueError("an error of the user's")
        if way == "exit":
            sys.exit(3)
        os.kill(os.getpid(), getattr(signal, way.partition(" ")[0]))

    phx.mcmc(
        schools, {"y": Y, "sigma": SIGMA}, kernel=phx.rwmh(step_size=0.5), mesh=phx.make_mesh(), num_chains=4,
        num_warmup=0, num_samples=10**6, keep=["mu"], on_block=on_block, progress=False,
        checkpoint=Path(folder) / "run",
    )  # fmt: skip


def sample(folder: str) -> None:
    """Make a run with saves and a store, and write its draws."""
    import jax

    import phalanx as phx

    def on_block(report: Any) -> None:
        print(report.phase, flush=True)

    found = single.run(Path(folder) / "run", on_block, store=True, mesh=phx.make_mesh(), **SIZES)
    if jax.process_index() == 0:
        np.savez(Path(folder) / "draws.npz", *single.arrays_of(found))  # pyright: ignore[reportArgumentType]


def chains(number: str, count: str, port: str, num_samples: str, runs: str) -> None:
    """Draw chains on a core of this process's own, and print the seconds of each run."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(number)]})
    import phalanx as phx

    if int(count) > 1:
        phx.initialize(f"127.0.0.1:{port}", num_processes=int(count), process_id=int(number))
    random = np.random.default_rng(0)
    x = random.normal(size=(1_000, COLUMNS)).astype(np.float32)
    data, mesh = {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}, phx.make_mesh()
    kernel = phx.hmc(num_steps=10, step_size=0.02)
    sampler = phx.compile(regression, data, kernel=kernel, mesh=mesh, num_chains=LANES * int(count))
    for run in range(int(runs) + 1):
        found = sampler.run(num_warmup=0, num_samples=int(num_samples), seed=run, progress=False)
        if run:  # the first learns how long blocks take
            print(found.timing.sampling, flush=True)


ROLES = {"fail": fail, "sample": sample, "chains": chains}

# -- what is measured --------------------------------------------------------------------------------------------------


def launched(count: int, *arguments: str) -> subprocess.Popen[str]:
    """Start this script under `phalanx launch` in so many processes."""
    command = [sys.executable, "-m", "phalanx", "launch", "-n", str(count), __file__, "--role", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def failures(rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Return a row for each failure: the most seconds until all processes had ended, and the launcher's last line."""
    rows = []
    for way in WAYS:
        seconds, last = [], ""
        for number in range(rounds):
            place = folder / f"{way.replace(' ', '-')}-{number}"
            place.mkdir()
            process = launched(4, "fail", str(place), way)
            _, err = process.communicate(timeout=600)
            seconds.append(time.time() - float((place / "failed-at").read_text()))
            last = err.splitlines()[-1]
        rows.append({"way": way, "seconds": round(max(seconds), 1), "line": last, "met": max(seconds) <= END_SECONDS})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def kills(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Kill runs of two processes `count` times; return the kills by phase, and how runs ended."""
    (folder / "whole").mkdir()
    _end(launched(2, "sample", str(folder / "whole")))
    with np.load(folder / "whole" / "draws.npz") as found:
        expected = [found[name] for name in found.files]
    random, where, ends, starts, number = np.random.default_rng(seed), Counter(), Counter(), [20.0], 0
    place = folder / "killed"
    while where.total() < count or number:
        place.mkdir(exist_ok=True)
        process, born, phase, alone = launched(2, "sample", str(place)), time.monotonic(), "start", False
        if where.total() < count and number < single.IN_A_ROW:
            if random.random() < AT_START:
                _look(process, born + random.uniform(0.0, statistics.median(starts)))
            else:
                phase = _look(process, np.inf)
                starts.append(time.monotonic() - born)
                phase = _look(process, time.monotonic() + random.exponential(2.0)) or phase
            launcher, *others = soak.tree(process.pid)
            alone = random.random() < 0.5 and len(others) > 1
            victims = [others[int(random.integers(len(others)))]] if alone else [launcher, *others]
            for victim in victims:
                _kill(victim)
        _, err = process.communicate(timeout=900)
        if process.returncode == 0:
            with np.load(place / "draws.npz") as found:
                same = single.are_equal([found[name] for name in found.files], expected)
            stored, _ = soak.are_equal(folder / "whole" / "run.zarr", place / "run.zarr")
            ends["same" if same and stored else "other"] += 1
            number = 0
            shutil.rmtree(place)
        elif process.returncode in (-9, 137):
            number += 1
            where[f"{phase}, {'one of two' if alone else 'both'}"] += 1
        else:
            raise RuntimeError(f"a run ended with status {process.returncode}: {err}")
    return {"kills": where.total(), "where": dict(sorted(where.items())), "runs": dict(ends)}


def _look(process: subprocess.Popen[str], until: float) -> str:
    """Wait until a time, or for the first line where it is infinite; return the phase of the last line."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    phase = ""
    while process.poll() is None and time.monotonic() < until:
        for line in iter(process.stdout.readline, ""):
            phase = line.strip().removeprefix("[0] ").removeprefix("[1] ")
            phase = "" if phase.startswith("[") else phase  # Gloo reports a connection
            if phase and not np.isfinite(until):
                return phase
        time.sleep(0.01)
    return phase


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has ended
        return


def _end(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=900)
    if process.returncode:
        raise RuntimeError(err)
    return out


def speed(rounds: int, num_samples: int) -> list[dict[str, Any]]:
    """Return the row of the time of two processes with a core each against that of one with half of their chains."""
    times: dict[str, list[float]] = {"two processes": [], "one process": []}
    for turn in range(rounds):
        for way in list(times)[:: 1 if turn % 2 else -1]:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = str(free.getsockname()[1])
            count = 2 if way == "two processes" else 1
            commands = (
                [sys.executable, __file__, "--role", "chains", str(number), str(count), port, str(num_samples), "3"]
                for number in range(count)
            )
            pipe = subprocess.PIPE
            started = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for command in commands]
            each = [[float(line) for line in _end(process).splitlines() if line[0].isdigit()] for process in started]
            times[way].append(statistics.median(map(max, zip(*each, strict=True))))
    what = f"{LANES} chains of a regression on each core"
    row = side_by_side.compare(what, "two processes", "one process", times, at_most=round(1 / AT_LEAST, 3))
    return [row]


def table(found: dict[str, Any]) -> dict[str, Any]:
    """Return the table of failures and kills."""
    lines = [[f"one of four: {row['way']}", f"{row['seconds']} s until all ended", row["line"]]
             for row in found.get("failures", ())]  # fmt: skip
    runs = found.get("kills", {}).get("runs", {})
    ended = ", ".join(f"{count} runs ended with {how} draws" for how, count in runs.items())
    lines += [[f"kill -9 of two: {place}", f"{count} times", ended]
              for place, count in found.get("kills", {}).get("where", {}).items()]  # fmt: skip
    return {"columns": ["fault", "found", "reported as, or ended as"], "lines": lines}


def main() -> None:
    if sys.argv[1:2] == ["--role"]:
        ROLES[sys.argv[2]](*sys.argv[3:])
        return
    parts = "failures", "kills", "speed"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--rounds", type=int, default=3, help="failures of each way, and turns of each speed")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--samples", type=int, default=300, help="draws of each chain whose speed is measured")
    parser.add_argument("--results", type=Path, default=side_by_side.RESULTS, help="folder for the JSON file")
    options = parser.parse_args()
    file, watch = options.results / "processes.json", side_by_side.Watch()
    found = json.loads(file.read_text())["found"] if file.exists() else {}
    measures = {
        "failures": lambda folder: failures(options.rounds, folder),
        "kills": lambda folder: kills(options.kills, folder),
        "speed": lambda folder: speed(options.rounds, options.samples),
    }
    for part in options.only:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["PHALANX_CACHE"] = str(Path(folder) / "cache")
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
            found[part] = measures[part](Path(folder))
        settings = {"only": options.only, "rounds": options.rounds}
        rows = found.get("speed", [])
        side_by_side.write("processes", rows, settings, watch, options.results, found=found, table=table(found))
        print(json.dumps(found[part]))


if __name__ == "__main__":
    main()
