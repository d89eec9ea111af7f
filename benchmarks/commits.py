"""This tree against an earlier commit, in turns, by Phalanx's part of the other benchmarks.

    python benchmarks/commits.py a028b06

The commit is unpacked into a temporary folder. Each of the two runs its own script on its own package, with its own
definition of an effective sample. Peers are left out. This script itself times fresh processes and second calls.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import side_by_side
from side_by_side import Measured, Process, Way

HERE = Path(__file__).parent
CASES: dict[str, tuple[int, list[str]]] = {
    "commits": (2, []),
    "many_chains": (2, []),
    "chees": (2, []),
    "mnist_leapfrog": (2, []),
    "mnist_numpyro": (2, []),
    "mixture": (2, ["--samples", "200000000"]),
    "movielens": (2, []),
    "covertype": (2, []),
}
"""Devices, and options, of each script."""

PARTS = {"covertype": "a leapfrog"}
"""The part to compare of a script whose other parts take hours."""

AT_MOST = 1.05


def calls(folder: Path) -> dict[str, Way]:
    """Return eight schools from a fresh process and in second calls; see `fresh_process` and `rerun_overhead`.

    The folder keeps compiled programs.
    """
    import numpy as np
    import numpyro.distributions as dist
    from fresh_process import OURS, timed

    import phalanx as phx

    new, seeds = (folder / str(number) for number in itertools.count()), itertools.count()
    warm, random = str(folder / "warm"), np.random.default_rng(0)
    timed(OURS, warm)

    x = random.normal(size=(500, 20)).astype(np.float32)
    data = {"x": x, "y": (x.sum(1) + random.normal(size=500)).astype(np.float32)}

    def model(x: Any, y: Any) -> None:
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([20]))
        phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    def again() -> Measured:
        """Return the time of the call; its number of leapfrogs is fixed, whatever the tuning."""
        sizes: dict[str, Any] = {"num_chains": 4, "num_warmup": 0, "num_samples": 500, "seed": next(seeds)}
        began = time.perf_counter()
        phx.mcmc(model, data, kernel=phx.hmc(num_steps=10, step_size=0.03), **sizes, progress=False)
        return Measured(time.perf_counter() - began, 1.0)

    again()
    return {
        "a fresh process, empty cache": Way(lambda: Measured(timed(OURS, str(next(new)))[0], 1.0)),
        "compiling": Way(lambda: Measured(timed(OURS, str(next(new)))[2], 1.0)),
        "a fresh process, warm cache": Way(lambda: Measured(timed(OURS, warm)[0], 1.0)),
        "another seed, eight schools": Way(lambda: Measured(timed(OURS, warm)[1], 1.0)),
        "a second call, no warm-up": Way(again),
    }


def compared(name: str, trees: dict[str, Path], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each way of Phalanx's that both trees time."""
    devices, arguments = CASES[name]
    if options.data is not None and name.startswith("mnist"):
        arguments = [*arguments, "--data", str(options.data)]
    processes = {}
    for label, tree in trees.items():
        script = HERE / "commits.py" if name == "commits" else tree / "benchmarks" / f"{name}.py"
        arguments_of = ["HEAD"] if name == "commits" else [*arguments, "--results", str(trees["before"])]
        processes[label] = Process(str(script), arguments_of, devices, {"PYTHONPATH": str(tree / "src")})
    ours = [way for way in processes["now"].names if name == "commits" or "Phalanx" in way]
    both = [way for way in ours if way in processes["before"].names and PARTS.get(name, "") in way]
    for way in both:
        times: dict[str, list[float]] = {label: [] for label in processes}
        for number in range(options.rounds + 1):
            order = list(processes) if number % 2 else list(processes)[::-1]
            for label in order:
                taken = processes[label].time(way)
                if number:
                    times[label].append(taken)
        unit, scale = ("ns", 1e6) if min(times["now"]) < 1e-6 else ("ms", 1.0)
        scaled = {label: [scale * seconds for seconds in taken] for label, taken in times.items()}
        yield side_by_side.compare(f"{name}: {way}", "now", "before", scaled, at_most=AT_MOST, unit=unit)
    for process in processes.values():
        process.end()


def unpacked(commit: str, folder: Path) -> Path:
    """Unpack the tree of a commit into `folder`."""
    packed = subprocess.run(["git", "archive", commit], cwd=HERE.parent, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=5)
    parser.add_argument("commit", help="to compare with")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--data", type=Path, help="folder of MNIST; random images without it")
    options = parser.parse_args()
    if options.serve_on:
        import phalanx as phx

        phx.use_cpu_devices(options.serve_on)
        with tempfile.TemporaryDirectory() as caches:
            side_by_side.serve(calls(Path(caches)))
        return
    watch, (rows, parts) = side_by_side.Watch(), known(options)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trees = {"now": HERE.parent, "before": unpacked(options.commit, folder)}
        for name in options.only:
            part = side_by_side.Watch()
            for row in compared(name, trees, options):
                rows.append(row)
                parts[name] = {"rounds": options.rounds, **part.look()}
                print(row, file=sys.stderr)
                rows.sort(key=lambda row: list(CASES).index(part_of(row)))
                side_by_side.save("commits", rows, {"commit": options.commit}, watch, options.results, parts=parts)


def part_of(row: dict[str, Any]) -> str:
    """Return the name of the script to which a row belongs."""
    return row["what"].partition(":")[0]


def known(options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return rows and settings of earlier runs against the same commit, for the scripts that do not run again."""
    file = options.results / "commits.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    if found.get("settings", {}).get("commit") != options.commit:
        return [], {}
    kept = [row for row in found["rows"] if part_of(row) not in options.only]
    return kept, {name: part for name, part in found.get("parts", {}).items() if name not in options.only}


if __name__ == "__main__":
    os.environ.setdefault("PHALANX_CACHE", "off")
    main()
