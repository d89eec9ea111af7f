"""Guides on reference posteriors: verdict and truth for each guide and posterior, with gradients and seconds.

A fit is near the truth when every mean is within a tenth of the posterior's standard deviation. A verdict that trusts a
fit far from the truth is marked SILENT; no row should be.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))  # before what is imported from there: E402 says it should come first

from tests.statistical.posteriordb.entries import ENTRIES  # noqa: E402
from tests.statistical.test_guides import GUIDES, OPTIONS, worst_mean  # noqa: E402

import phalanx as phx  # noqa: E402


def row(name: str, guide: str) -> dict[str, object]:
    """Return the row of one guide on one posterior."""
    entry, began = ENTRIES[name], time.perf_counter()
    fields: dict[str, object] = {"posterior": name, "guide": guide}
    try:
        fit = phx.fit(entry.program, GUIDES[guide], entry.data(), **OPTIONS.get(guide, {}), progress=False)
    except FileNotFoundError:
        return {**fields, "outcome": "no data"}
    except ValueError as refused:
        return {**fields, "outcome": "refused", "why": str(refused)[:120]}
    verdict, worst = fit.verdict(), worst_mean(entry, fit.sample(seed=1, n=20_000))
    outcome = ("trusted" if verdict.good else "not trusted") + (", SILENT" if verdict.good and worst >= 0.1 else "")
    return {
        **fields, "outcome": outcome, "worst_mean": round(worst, 3), "k_hat": round(fit.evidence().k_hat, 2),
        "findings": [finding.topic for finding in verdict.findings], "steps": fit.steps,
        "gradients": fit.timing.gradient_evaluations, "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def main() -> None:
    names, rows = sys.argv[1:] or list(ENTRIES), []
    for name in names:
        for guide in GUIDES:
            rows.append(row(name, guide))
            print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    table = FOLDER / "results" / "tables" / "guides.json"  # apart from the times, of which README.md has a table
    table.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(table.read_text()) if table.exists() else []  # posteriors that were not asked for stay
    whole = [*(row for row in known if row["posterior"] not in names), *rows]
    whole.sort(key=lambda row: list(ENTRIES).index(str(row["posterior"])))
    table.write_text(json.dumps(whole, indent=1) + "\n")
    silent = [r for r in rows if "SILENT" in str(r["outcome"])]
    print(f"{len(rows)} fits, {len(silent)} silent failures")


if __name__ == "__main__":
    main()
