"""This tree against an earlier commit, in turns, by Phalanx's part of the other benchmarks.

    python benchmarks/commits.py a028b06

The commit is unpacked into a temporary folder. Each of the two runs its own script on its own package, with its own
definition of an effective sample. Peers are left out. This script itself times fresh processes, second calls, and the
models of `fits` and `training`.
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
    "fits": (1, []),
    "training": (1, []),
}
"""Devices, and options, of each script."""

PARTS = {"covertype": "a leapfrog"}
"""The part to compare of a script whose other parts take hours."""

OURS = {"commits", "fits", "training"}
"""The cases that this script serves itself."""

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


def fits() -> dict[str, Way]:
    """Return steps and second calls of the fits of `benchmarks/fits.py`, but for the one on MovieLens' shape."""
    import fits as script

    def way(work: Any, guide: str, data: Any, whole: bool) -> Way:
        def steps() -> Measured:
            fit = script.phalanx_fit(work, guide, data, num_steps=work.steps, until=False, optimizer=script.RATE)
            return Measured(fit.timing.sampling, work.steps)

        return Way(lambda: script.phalanx_fit(work, guide, data, **work.whole)) if whole else Way(steps)

    small = {case: found for case, found in script.CASES.items() if found[0] != "MovieLens' shape"}
    return {
        f"{case}, {what}": way(script.WORK[name], guide, script.WORK[name].data(), whole)
        for case, (name, guide) in small.items()
        for what, whole in (("a step", False), ("a second call", True))
    }


def training() -> dict[str, Way]:
    """Return training steps of the networks of `benchmarks/training.py`."""
    import training as script

    def way(name: str, steps: int) -> Way:
        by_phalanx, _, batch = script.MODELS[name]
        fit = by_phalanx(script.images(argparse.Namespace(data=None), script.BATCHES * batch))
        return Way(lambda: Measured(fit(num_steps=steps, progress=False).timing.sampling, steps))

    return {f"{name}, a step": way(name, steps) for name, steps in (("VAE", 100), ("transformer", 20))}


def compared(name: str, trees: dict[str, Path], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each way of Phalanx's that both trees time."""
    devices, arguments = CASES[name]
    if options.data is not None and name.startswith("mnist"):
        arguments = [*arguments, "--data", str(options.data)]
    processes = {}
    for label, tree in trees.items():
        script = HERE / "commits.py" if name in OURS else tree / "benchmarks" / f"{name}.py"
        arguments_of = ["HEAD", "--only", name, "--tree", str(tree)]
        if name not in OURS:
            arguments_of = [*arguments, "--results", str(trees["before"])]
        processes[label] = Process(str(script), arguments_of, devices, {"PYTHONPATH": str(tree / "src")})
    ours = [way for way in processes["now"].names if name in OURS or "Phalanx" in way]
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


def serve(options: argparse.Namespace) -> None:
    """Serve one case of this script, with the benchmarks of the tree that is timed."""
    import phalanx as phx

    sys.path.insert(0, str(options.tree / "benchmarks"))
    phx.use_cpu_devices(options.serve_on)
    with tempfile.TemporaryDirectory() as caches:
        served = {"commits": lambda: calls(Path(caches)), "fits": fits, "training": training}
        side_by_side.serve(served[options.only[0]]())


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=5)
    parser.add_argument("commit", help="to compare with")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--data", type=Path, help="folder of MNIST; random images without it")
    parser.add_argument("--tree", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_on:
        serve(options)
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
