"""What a demo prints and writes: its model, the worst rows of the summary, the headline, the files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.extras import require
from phalanx.report import save_figures
from phalanx.run.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_ROWS = 8
"""Rows of the summary that are printed: the log density and those that have mixed worst."""


def introduce(title: str, mathematics: str, source: str) -> None:
    """Print what is about to be run."""
    console = _console()
    console.rule(f"[bold]{title}")
    console.print(mathematics, highlight=False)
    console.print(f"data: {source}", highlight=False)


def finish(
    posterior: Posterior, headline: Mapping[str, Any], words: str, figures: Mapping[str, Figure], out: Path
) -> None:
    """Print summary, headline figures and verdict; write the report, the pictures and `result.json` to `out`."""
    console, table = _console(), posterior.summary()
    rest = table.iloc[1:].sort_values("r_hat", ascending=False)
    shown = require("pandas", "report").concat([table.iloc[:1], rest.iloc[: SHOWN_ROWS - 1]])
    left = len(table) - len(shown)
    console.print(repr(shown), highlight=False, soft_wrap=True)
    if left:
        console.print(f"({left} more rows; these are the log density and the highest R-hats)", highlight=False)
    console.print(f"\n[bold]{words}", highlight=False)
    timing = posterior.timing
    console.print(
        f"{timing.compile:.1f} s compiling, {timing.warmup:.1f} s warm-up, {timing.sampling:.1f} s sampling; "
        f"{timing.gradient_evaluations:,} gradients, {posterior.num_divergences} divergences",
        highlight=False,
    )
    verdict = posterior.verdict()
    # Names of elements have brackets, which are no markup.
    console.print(str(verdict), style="green" if verdict else "yellow", highlight=False, markup=False, soft_wrap=True)

    out.mkdir(parents=True, exist_ok=True)
    files = [posterior.report(out / "report.html"), *save_figures(posterior, out)]
    for name, figure in figures.items():
        figure.savefig(out / f"{name}.png")
        files.append(out / f"{name}.png")
    result = out / "result.json"
    record = {k: v for k, v in asdict(posterior.record).items() if k != "source"}
    found = table["r_hat"].to_numpy()
    r_hat = {"log_density": float(found[0]), "worst": float(found.max())}
    document = {"headline": dict(headline), "r_hat": r_hat, "timing": asdict(timing), "run": record}
    result.write_text(json.dumps(document, indent=1) + "\n")
    console.print(f"written: {', '.join(str(file) for file in [*files, result])}", highlight=False, soft_wrap=True)


def _console() -> Any:
    return require("rich.console", "cli").Console()
