"""Twelve posteriors with known answers: time to 400 effective samples of the worst parameter, by six systems.

Every run is a fresh process whose compile cache is warm, with the system's own default warm-up (nutpie: 400 iterations,
the others: 1,000), 4 chains and 1,000 draws of each. The time is that of the process, import included, with its
sampling part scaled to 400 effective samples (up, if the draws were worth less). A time is marked if a mean is off by
more than 4 standard errors or an R-hat exceeds 1.05.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side

FOLDER = Path(__file__).parent / "reference"
TITLES = {
    "phalanx": "Phalanx", "numpyro": "NumPyro", "blackjax": "BlackJAX", "nutpie": "nutpie", "stan": "Stan",
    "stanli": "stanli",
}  # fmt: skip
SYSTEMS = tuple(TITLES)
ENOUGH = 400

sys.path.insert(0, str(FOLDER.parents[1]))


def timed(system: str, name: str, data: Path, seed: int, cache: Path, python: str) -> dict[str, float]:
    """Return one run's seconds to enough effective samples, its effective sample size, and its errors."""
    from tests.statistical.posteriordb.entries import ENTRIES
    from tests.statistical.posteriordb.reference import compare

    environment = os.environ | {
        "PHALANX_CACHE": str(cache / "phalanx"),
        "JAX_COMPILATION_CACHE_DIR": "" if system == "phalanx" else str(cache / system),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    if system in ("numpyro", "blackjax"):
        environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"  # one for each chain
    draws = cache / "draws.npz"
    command = [python, str(FOLDER / f"run_{system}.py"), name, str(data), str(draws), str(seed)]
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    sampling, divergences = map(float, done.stdout.split()[-2:])
    agreement = compare(ENTRIES[name], np.load(draws))
    worth = float(agreement.ess.min())
    worth = worth if worth > 1 else 1.0  # of chains that stand still it is not defined
    sampling = min(sampling, seconds)  # in parallel a system may count the seconds of every chain
    return {
        "seconds": seconds + sampling * (ENOUGH / worth - 1),
        "process_seconds": seconds,
        "ess": worth,
        "z": float(np.abs(agreement.z).max()),
        "r_hat": float(agreement.r_hat.max()),
        "divergences": divergences,
    }


def measure(
    names: Sequence[str], rounds: int, python: Mapping[str, str]
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Return runs of every model by every system, in turns; the first, which fills the caches, does not count."""
    from tests.statistical.posteriordb.entries import ENTRIES

    found: dict[str, dict[str, list[dict[str, float]]]] = {name: {s: [] for s in SYSTEMS} for name in names}
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        for name in names:
            data = cache / f"{name}.npz"
            np.savez(data, **ENTRIES[name].data())
            for turn in range(rounds + 1):
                for system in SYSTEMS if turn % 2 else reversed(SYSTEMS):
                    run = timed(system, name, data, turn, cache, python[system])
                    if turn:
                        found[name][system].append(run)
            print(name, {s: round(runs[0]["seconds"], 2) for s, runs in found[name].items()}, flush=True)
    return found


def table(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line for each model: seconds of each system."""

    def cell(runs: Sequence[Mapping[str, float]]) -> str:
        seconds = statistics.median(run["seconds"] for run in runs)
        wrong = any(run["z"] > 4 or run["r_hat"] > 1.05 for run in runs)
        return f"{seconds:.1f}{' (off)' if wrong else ''}"

    lines = [[name, *(cell(found[name][system]) for system in SYSTEMS)] for name in found]
    return {"columns": ["seconds to 400 effective samples", *TITLES.values()], "lines": lines}


def main() -> None:
    from tests.statistical.posteriordb.entries import ENTRIES

    parser = side_by_side.arguments(__doc__ or "", rounds=2)
    parser.add_argument("--models", nargs="*", default=list(ENTRIES), choices=list(ENTRIES))
    parser.add_argument("--peers", default=sys.executable, help="Python that has what requirements.txt lists")
    options = parser.parse_args()
    watch = side_by_side.Watch()
    python = {system: sys.executable if system == "phalanx" else options.peers for system in SYSTEMS}
    found = measure(options.models, options.rounds, python)

    times = {
        TITLES[system]: [
            math.exp(statistics.mean(math.log(found[name][system][turn]["seconds"]) for name in found))
            for turn in range(options.rounds)
        ]
        for system in SYSTEMS
    }
    rows = [
        side_by_side.compare(f"{ENOUGH} effective samples, geometric mean", "Phalanx", TITLES[s], times, at_most=1.0)
        for s in SYSTEMS[1:]
    ]
    settings = {"rounds": options.rounds, "chains": 4, "draws": 1000, "effective_samples": ENOUGH}
    lines = {"table": table(found), "runs": found}
    side_by_side.write(Path(__file__).stem, rows, settings, watch, options.results, times, **lines)


if __name__ == "__main__":
    main()
