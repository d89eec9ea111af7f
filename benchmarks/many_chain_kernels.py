"""NUTS, ChEES-HMC and MAMS with 64 chains: effective samples of the worst parameter per gradient, model by model.

The choice among kernels for many chains rests on this experiment. It counts gradients and not seconds, so that the
quality of each implementation does not matter. R-hat and the error of the means (in standard errors of the reference
posterior) say whether the answer is right.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import many_chains
import numpy as np
import side_by_side

sys.path.insert(0, str(Path(__file__).parents[1]))

KERNELS = ("nuts", "chees", "mams")
LOGISTIC = many_chains.MODELS[2]


def judged(name: str, kernel: str, seed: int, options: Any) -> tuple[float, float, float]:
    """Return effective samples per gradient, R-hat, and the error of the means if they are known."""
    from tests.statistical.posteriordb.entries import ENTRIES
    from tests.statistical.posteriordb.reference import compare

    import phalanx as phx
    from phalanx.diagnostics import rhat

    sizes = {"num_chains": options.chains, "num_warmup": options.warmup, "num_samples": options.draws, "seed": seed}
    kernel = getattr(phx, kernel)()
    if name == LOGISTIC:
        model, data = many_chains.model_of(name, phx.sample), many_chains.data_of(name)
        run = phx.mcmc(model, data, kernel=kernel, progress=False, **sizes)
        worth, far, z = many_chains.worst_ess(run.draws), float(np.max(rhat(run.draws["w"]))), float("nan")
    else:
        entry = ENTRIES[name]
        run = phx.mcmc(entry.program, entry.data(), keep=entry.names, kernel=kernel, progress=False, **sizes)
        found = compare(entry, run.draws)
        worth, far, z = float(found.ess.min()), float(found.r_hat.max()), float(np.abs(found.z).max())
    return worth / float(run.stats["num_steps"].sum()), far, z


def main() -> None:
    from tests.statistical.posteriordb.entries import ENTRIES

    parser = side_by_side.arguments(__doc__ or "", rounds=3)
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--draws", type=int, default=200)
    options = parser.parse_args()
    watch, names = side_by_side.Watch(), (*ENTRIES, LOGISTIC)
    found = {
        name: {
            kernel: np.median([judged(name, kernel, seed, options) for seed in range(options.rounds)], axis=0).tolist()
            for kernel in KERNELS
        }
        for name in names
    }
    lines = [[name, *(f"{e:.3f} ({far:.3f}, {z:.1f})" for e, far, z in found[name].values())] for name in names]
    columns = ["effective samples per gradient (R-hat, largest z)", *KERNELS]
    settings = {name: getattr(options, name) for name in ("rounds", "chains", "warmup", "draws")}
    more = {"table": {"columns": columns, "lines": lines}, "runs": found}
    side_by_side.write(Path(__file__).stem, [], settings, watch, options.results, **more)


if __name__ == "__main__":
    main()
