"""Every benchmark on the commit that is checked out, one after the other; then the table of README.md.

    python benchmarks/rerun_all.py --data DIR --peers PYTHON

`DIR` has the folders `mnist`, `movielens` and `posteriordb`. Benchmarks whose data are
missing are skipped and named. All take most of a day: `--after NAME` continues behind a benchmark, `--only` runs some.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
MNIST, MOVIELENS, PEERS = "mnist", "movielens", "peers"
"""Marks of arguments that the user's options replace."""

RUNS: dict[str, tuple[str, ...]] = {
    "mnist_leapfrog": ("--data", MNIST),
    "mnist_numpyro": ("--data", MNIST),
    "rerun_overhead": (),
    "fresh_process": (),
    "textbook_models": (),
    "many_chains": (),
    "covertype": (),
    "reference_posteriors": ("--peers", PEERS),
    "mixture": (),
    "tiles": (),
    "lanes_last": (),
    "chees": (),
    "many_chain_kernels": (),
    "laps": (),
    "smc": (),
    "centring": (),
    "hidden_markov": (),
    "many_data_sets": (),
    "movielens": ("--data", MOVIELENS),
    "ensemble": ("--data", MNIST),
    "training": ("--data", MNIST),
    "pixel_sampling": (),
    "fits": (),
    "pathfinder": ("--peers", PEERS),
    "warmup_length": (),
    "workarounds": (),
    "stopping": (),
    "verdicts": (),
    "guides": (),
    "fit_verdicts": (),
    "energies": (),
    "loo": ("--rows", "1000000", "--out", str(HERE / "results" / "loo.json")),
    "communication": (),
    "transformer_communication": (),
    "run_communication": (),
    "kills": (),
    "processes": (),
    "soak": (),
}
"""Arguments of each script; comparisons of two commits, or of two releases of JAX, are not among them, nor is the half
hour of an accelerator."""


POSTERIORDB = {"reference_posteriors", "warmup_length"}
"""Scripts that need the folder `posteriordb`."""


def arguments_of(name: str, options: argparse.Namespace) -> list[str] | None:
    """Return the arguments of a script; None if its data are missing."""
    found = []
    if name in POSTERIORDB and not (options.data and (options.data / "posteriordb").is_dir()):
        return None
    for argument in RUNS[name]:
        if argument in (MNIST, MOVIELENS):
            folder = None if options.data is None else options.data / argument
            if folder is None or not folder.is_dir():
                return None
            argument = str(folder)
        found.append(options.peers if argument == PEERS else argument)
    return found


def run(name: str, arguments: list[str], environment: dict[str, str]) -> int:
    """Run one script, and return its exit status."""
    began = time.monotonic()
    status = subprocess.run([sys.executable, str(HERE / f"{name}.py"), *arguments], env=environment).returncode
    print(f"-- {name} ended with exit status {status} after {time.monotonic() - began:.0f} s", flush=True)
    return status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the folders mnist and movielens")
    parser.add_argument("--peers", default=sys.executable, help="Python that has what requirements.txt lists")
    parser.add_argument("--after", choices=list(RUNS), help="continue behind this benchmark")
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    options = parser.parse_args()
    environment = dict(os.environ) if options.data is None else {**os.environ, "PHALANX_DATA": str(options.data)}
    behind = 0 if options.after is None else 1 + list(RUNS).index(options.after)
    chosen = {name: arguments_of(name, options) for name in list(RUNS)[behind:] if name in options.only}
    if skipped := [name for name, arguments in chosen.items() if arguments is None]:
        print(f"skipped, since --data does not name their data: {', '.join(skipped)}", flush=True)
    failed = [name for name, arguments in chosen.items() if arguments is not None and run(name, arguments, environment)]
    subprocess.run([sys.executable, str(HERE / "table.py")], check=True)
    if failed:
        sys.exit(f"these benchmarks failed, and their results are those of earlier runs: {', '.join(failed)}")


if __name__ == "__main__":
    main()
