"""Run the models with default settings, in single precision, and print how well they agree with their references."""

from __future__ import annotations

import argparse

import numpy as np
from tests.statistical.posteriordb.entries import ENTRIES
from tests.statistical.posteriordb.reference import Entry, compare

import phalanx as phx

HEAD = "model", "max |z|", "sd error", "R-hat", "divergences", "seconds", "gradients", "min ESS"


def row(name: str, entry: Entry, seed: int) -> list[str]:
    posterior = phx.mcmc(entry.program, entry.data(), keep=entry.names, seed=seed, progress=False)
    found = compare(entry, posterior.draws)
    return [
        name,
        f"{np.max(np.abs(found.z)):.2f}",
        f"{np.max(np.abs(found.sd_error)):.1%}",
        f"{np.max(found.r_hat):.4f}",
        f"{posterior.num_divergences}",
        f"{posterior.timing.total:.1f}",
        f"{posterior.timing.gradient_evaluations:,}",
        f"{np.min(found.ess):.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"some of {', '.join(ENTRIES)}; all without")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if unknown := set(options.names) - set(ENTRIES):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(ENTRIES)}")
    line = "{:<26}" + "{:>12}" * (len(HEAD) - 1)
    print(line.format(*HEAD))
    for name in options.names or ENTRIES:
        print(line.format(*row(name, ENTRIES[name], options.seed)), flush=True)


if __name__ == "__main__":
    main()
