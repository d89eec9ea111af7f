"""Phalanx on the JAX of another Python against that of this one, in turns.

    python benchmarks/jax_releases.py --other path/to/another/bin/python

Fresh processes and second calls, 256 chains, and the reference posteriors. Each side has the work-arounds that Phalanx
chooses for its JAX.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import side_by_side
from side_by_side import Measured, Process, Way

HERE = Path(__file__).parent
PARTS = ("calls", "many_chains", "reference_posteriors")
AT_MOST = 1.05


def posteriors(folder: Path) -> dict[str, Way]:
    """Return a way for each reference posterior: the time to 400 effective samples; see `reference_posteriors`."""
    import numpy as np
    from reference_posteriors import timed
    from tests.statistical.posteriordb.entries import ENTRIES

    def run(name: str, data: Path, seeds: list[int]) -> Measured:
        seeds.append(len(seeds))
        return Measured(timed("phalanx", name, data, seeds[-1], folder, sys.executable)["seconds"], 1.0)

    ways = {}
    for name, entry in ENTRIES.items():
        data = folder / f"{name}.npz"
        np.savez(data, **entry.data())
        ways[name] = Way(partial(run, name, data, []))
    return ways


def serve(options: argparse.Namespace) -> None:
    """Serve one part on the JAX of this process."""
    with tempfile.TemporaryDirectory() as folder:
        if options.only == ["reference_posteriors"]:  # every run is a process of its own
            side_by_side.serve(posteriors(Path(folder)))
            return
        from commits import calls

        import phalanx as phx

        phx.use_cpu_devices(options.serve_on)
        side_by_side.serve(calls(Path(folder)))


def turns(part: str, pythons: dict[str, str], options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each way of a part, round by round, on each JAX."""
    script = HERE / ("many_chains.py" if part == "many_chains" else Path(__file__).name)
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        arguments = ["--results", folder] if part == "many_chains" else ["--only", part]
        found = {
            label: Process(str(script), arguments, 2, {"PYTHONPATH": str(HERE.parent / "src")}, python)
            for label, python in pythons.items()
        }
        for process in found.values():
            stack.callback(process.end)
        names = next(iter(found.values())).names
        times: dict[str, dict[str, list[float]]] = {name: {label: [] for label in found} for name in names}
        for number in range(options.rounds + 1):  # the first round compiles
            for name in names:
                for label in list(found) if number % 2 else list(found)[::-1]:
                    seconds = found[label].time(name)
                    if number:
                        times[name][label].append(seconds)
    return times


def mean_over(times: dict[str, dict[str, list[float]]]) -> dict[str, list[float]]:
    """Return the geometric mean over the ways, round by round, on each JAX."""
    labels = next(iter(times.values()))
    return {
        label: [
            math.exp(statistics.mean(map(math.log, of_round)))
            for of_round in zip(*(times[name][label] for name in times), strict=True)
        ]
        for label in labels
    }


def release(python: str) -> str:
    """Return the name of the release of JAX that a Python imports."""
    ask = "import importlib.metadata as found; print('JAX', found.version('jax'))"
    return subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=3)
    parser.add_argument("--other", help="Python with another JAX")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    if options.serve_on:
        serve(options)
        return
    if not options.other:
        parser.error("--other is the Python whose JAX is compared, for instance that of another virtual environment")
    pythons = {release(python): python for python in (options.other, sys.executable)}
    if len(pythons) < 2:
        parser.error(f"both Pythons import {next(iter(pythons))}")
    (theirs, ours), watch, rows, lines = list(pythons)[::-1], side_by_side.Watch(), [], []
    taken: dict[str, list[float]] = {}
    for part in options.only:
        times = turns(part, pythons, options)
        if part == "reference_posteriors":
            lines = [
                [name, *(f"{statistics.median(of[label]):.1f}" for label in (theirs, ours))]
                for name, of in times.items()
            ]
            times = {"400 effective samples, geometric mean": mean_over(times)}
        for name, of in times.items():
            taken |= {f"{part}, {name}, {label}": seconds for label, seconds in of.items()}
            rows.append(side_by_side.compare(f"{part}: {name}", ours, theirs, of, at_most=AT_MOST))
        more: dict[str, Any] = (
            {"table": {"columns": ["seconds to 400 effective samples", theirs, ours], "lines": lines}} if lines else {}
        )
        side_by_side.save(Path(__file__).stem, rows, {"rounds": options.rounds}, watch, options.results, taken, **more)
        print(*rows, sep="\n")


if __name__ == "__main__":
    os.environ.setdefault("PHALANX_CACHE", "off")
    main()
