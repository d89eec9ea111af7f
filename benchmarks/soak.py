"""A long run with a checkpoint and a store, killed at random moments: its draws, and the memory of its processes.

The run is made once without interruption, as fast as it can. Then the same call waits after each block of sampling, so
that it lasts as long as asked for, and is ended by kill -9 at random moments, a few of them before the first block; the
call is repeated until it ends. Draws of both stores are compared bit for bit. Memory is that of the process and its
descendants, from /proc, and counts from some seconds after the first block of each process; a level is the median of a
minute.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import side_by_side
from saves_cost import SIGMA, Y, schools

SIZES = {"num_chains": 4, "num_warmup": 1_000, "seed": 5}
BLOCK_TICKS = 2_000
"""Ticks of a block, and so the same number of blocks in both runs."""

MOST_CHANGE = 0.05
"""Largest change of the level of memory, as a part of its median."""

AT_START = 0.2
"""Share of the kills that fall before the first block."""

SETTLED = 15.0
"""Seconds after the first block of a process from which its memory counts."""

PIECE = 10_000
"""Draws of each chain that are compared at a time."""


class Seen(NamedTuple):
    """Sample of the memory of a process and its descendants: seconds since the soak began, its number, bytes."""

    at: float
    process: int
    size: int


def run(folder: Path, num_samples: int, wait: float) -> None:
    """Make the run, or continue it; print a line after each block, and wait after those of sampling."""
    import jax

    import phalanx as phx
    from phalanx.run.compile.block_length import BLOCK_SECONDS

    def on_block(report: Any) -> None:
        print(report.phase, flush=True)
        time.sleep(wait if report.phase == "sampling" else 0.0)

    options: dict[str, Any] = dict(SIZES)
    mesh, chains = phx.make_mesh(devices=jax.devices()[:1]), options.pop("num_chains")
    sampler = phx.compile(schools, {"y": Y, "sigma": SIGMA}, num_chains=chains, mesh=mesh)
    block_length = sampler.executables.block_length
    block_length.learn(BLOCK_TICKS, BLOCK_SECONDS)
    block_length.learn = lambda ticks, seconds: None
    saves = phx.checkpoint(folder / "saves", seconds=2.0)
    sampler.run(
        **options, num_samples=num_samples, checkpoint=saves, store=folder / "run.zarr", on_block=on_block,
        progress=False,
    )  # fmt: skip


def started(folder: Path, num_samples: int, wait: float = 0.0) -> subprocess.Popen[str]:
    """Start the run in a process of its own."""
    command = [sys.executable, __file__, "--run", str(folder), "--draws", str(num_samples), "--wait", str(wait)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def whole(folder: Path, num_samples: int) -> tuple[float, int]:
    """Make the run without interruption; return the seconds from its first block to its end, and blocks of sampling."""
    process = started(folder, num_samples)
    assert process.stdout is not None
    process.stdout.readline()
    began, blocks = time.monotonic(), sum(line.startswith("sampling") for line in process.stdout)
    if process.wait():
        raise RuntimeError(f"the run ended with status {process.returncode}")
    return time.monotonic() - began, blocks


def soak(folder: Path, num_samples: int, wait: float, between: float, seed: int = 0) -> dict[str, Any]:
    """Make the run with kills, `between` seconds apart on average; return kills by phase, and samples of memory."""
    random, where, seen, start = np.random.default_rng(seed), [], [], math.inf
    began = time.monotonic()
    while True:
        process, born = started(folder, num_samples, wait), time.monotonic()
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        early = math.isfinite(start) and random.random() < AT_START
        phase, until = "start", born + random.uniform(0.0, start) if early else math.inf
        while process.poll() is None and time.monotonic() < until:
            for line in iter(process.stdout.readline, ""):
                if phase == "start":
                    start = time.monotonic() - born
                    until = min(until, born + start + random.exponential(between))
                phase = line.strip()
            if phase != "start" and time.monotonic() > born + start + SETTLED:
                seen.append(Seen(time.monotonic() - began, len(where), resident(process.pid)))
            time.sleep(0.5)
        process.kill()  # no effect on one that has ended
        if process.wait() == 0:
            return {"where": where, "seen": seen, "seconds": time.monotonic() - began}
        if process.returncode != -9:
            raise RuntimeError(f"a run ended with status {process.returncode}")
        where.append(phase)


def resident(pid: int) -> int:
    """Return the bytes of memory of a process and its descendants; 0 once it has ended."""
    total = 0
    for number in tree(pid):
        try:
            total += int(Path(f"/proc/{number}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:  # it has ended
            continue
    return total


def tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for number in found:
        yield number
        found += [child for child, parent in parents.items() if parent == number]


def levels(seen: list[Seen]) -> list[float]:
    """Return the median of each minute of each process, in bytes; a process that lived for less has one."""
    minutes: dict[tuple[int, int], list[int]] = {}
    for one in seen:
        minutes.setdefault((one.process, int(one.at // 60)), []).append(one.size)
    return [statistics.median(sizes) for sizes in minutes.values()]


def are_equal(a: Path, b: Path) -> tuple[bool, int]:
    """Return whether two stores hold the same draws and statistics, bit for bit, and the draws of each chain."""
    import phalanx as phx

    one, other = phx.open(a), phx.open(b)
    same = one.num_draws == other.num_draws
    for mine, others in ((one.draws, other.draws), (one.stats, other.stats)):
        same &= list(mine) == list(others)
        for name in mine if same else ():
            pieces = (np.s_[:, begin : begin + PIECE] for begin in range(0, one.num_draws, PIECE))
            same &= all(np.asarray(mine[name][p]).tobytes() == np.asarray(others[name][p]).tobytes() for p in pieces)
    return bool(same), other.num_draws


def table(found: dict[str, Any]) -> dict[str, Any]:
    """Return the table for README.md."""
    lines = [
        ["minutes", f"{found['minutes']}"],
        ["kills -9", ", ".join(f"{phase} {count}" for phase, count in found["kills"].items())],
        ["draws of each chain, of those of the run without kills", f"{found['draws']:,} of {found['expected']:,}"],
        ["equal bit for bit", "yes" if found["same"] else "no"],
        ["level of memory, median of all minutes", f"{found['level_MB']} MB"],
        ["largest change of it", f"{100 * found['change']:.1f}% (at most {100 * MOST_CHANGE:.0f}%)"],
    ]
    return {"columns": ["soak", "found"], "lines": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--between", type=float, default=90.0, help="mean seconds between kills")
    parser.add_argument("--draws", type=int, default=400_000, help="of each chain")
    parser.add_argument("--results", type=Path, default=side_by_side.RESULTS, help="folder for the JSON file")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)  # set in the processes that are killed
    parser.add_argument("--wait", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run(options.run, options.draws, options.wait)
        return
    watch = side_by_side.Watch()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["PHALANX_CACHE"] = str(folder / "cache")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        for name in ("whole", "killed"):
            (folder / name).mkdir()
        seconds, blocks = whole(folder / "whole", options.draws)
        wait = max(60 * options.minutes - seconds, 0.0) / blocks
        done = soak(folder / "killed", options.draws, wait, options.between)
        same, draws = are_equal(folder / "whole" / "run.zarr", folder / "killed" / "run.zarr")
    by_minute = levels(done["seen"])
    level = statistics.median(by_minute)
    found = {
        "minutes": round(done["seconds"] / 60, 1),
        "kills": {phase: done["where"].count(phase) for phase in dict.fromkeys(done["where"])},
        "draws": draws,
        "expected": options.draws,
        "same": same,
        "blocks": blocks,
        "level_MB": round(level / 1e6, 1),
        "change": round(max(abs(one - level) for one in by_minute) / level, 4),
        "levels_MB": [round(one / 1e6, 1) for one in by_minute],
    }
    found["met"] = same and draws == options.draws and found["change"] <= MOST_CHANGE
    settings = {"sizes": SIZES, "between": options.between}
    side_by_side.write("soak", [], settings, watch, options.results, found=found, table=table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
