"""Effective samples per gradient of 64 chains that tune together, by the length of warm-up.

The efficiency of the draws after a short warm-up is set against that after 1,000 iterations; R-hat and the error of the
means (in standard errors of the reference posterior) say whether the chains had arrived.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side

sys.path.insert(0, str(Path(__file__).parents[1]))

LENGTHS = (50, 100, 200, 300, 1000)
MODELS = ("eight_schools_noncentered", "kidiq", "sblrc", "garch11", "gauss_mix", "lotka_volterra")


def measured(name: str, chains: int, draws: int, rounds: int) -> dict[int, dict[str, float]]:
    """Return the medians over seeds for each length of warm-up."""
    from tests.statistical.posteriordb.entries import ENTRIES
    from tests.statistical.posteriordb.reference import compare

    import phalanx as phx

    entry, found = ENTRIES[name], {}
    for length in LENGTHS:
        runs = []
        for seed in range(rounds):
            posterior = phx.mcmc(
                entry.program, entry.data(), keep=entry.names, num_chains=chains, num_warmup=length, num_samples=draws,
                seed=seed, progress=False,
            )  # fmt: skip
            agreement = compare(entry, posterior.draws)
            gradients = posterior.stats["num_steps"].sum()
            runs.append((agreement.ess.min() / gradients, agreement.r_hat.max(), np.abs(agreement.z).max()))
        efficiency, r_hat, z = np.median(runs, axis=0)
        found[length] = {"ess_per_gradient": float(efficiency), "r_hat": float(r_hat), "z": float(z)}
    return found


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=3)
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--draws", type=int, default=200)
    options = parser.parse_args()
    watch = side_by_side.Watch()
    found = {name: measured(name, options.chains, options.draws, options.rounds) for name in MODELS}

    def cell(run: dict[str, float], best: dict[str, float]) -> str:
        return f"{run['ess_per_gradient'] / best['ess_per_gradient']:.2f} ({run['r_hat']:.3f}, {run['z']:.1f})"

    lines = [[name, *(cell(runs[length], runs[LENGTHS[-1]]) for length in LENGTHS)] for name, runs in found.items()]
    columns = ["efficiency (R-hat, largest z) after a warm-up of", *map(str, LENGTHS)]
    settings: dict[str, Any] = {"rounds": options.rounds, "chains": options.chains, "draws": options.draws}
    more = {"table": {"columns": columns, "lines": lines}, "runs": found}
    side_by_side.write(Path(__file__).stem, [], settings, watch, options.results, **more)


if __name__ == "__main__":
    main()
