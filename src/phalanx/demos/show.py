"""Output of the demos: introduction, summary, headline and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.posterior.posterior import Posterior
from phalanx.report import console, print_run, write_folder, write_result
from phalanx.report.plots.figures import save_pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def introduce(title: str, mathematics: str, source: str) -> None:
    """Print the title, the model and the source of the data."""
    to = console()
    to.rule(f"[bold]{title}")
    to.print(mathematics, markup=False, highlight=False)
    to.print(f"data: {source}", markup=False, highlight=False)


def finish(
    posterior: Posterior, headline: Mapping[str, Any], words: str, figures: Mapping[str, Figure], out: Path
) -> None:
    """Print the summary and the headline; write the report, the pictures and `result.json` to `out`."""
    print_run(posterior)
    to = console()
    to.print(f"\n{words}", style="bold", markup=False, highlight=False)
    _print_written(write_folder(posterior, out, headline=headline, figures=figures))


def save(figures: Mapping[str, Figure], result: Mapping[str, Any], out: Path) -> None:
    """Write pictures and `result.json` to `out`, and print their paths."""
    _print_written([*save_pictures(figures, out), write_result(result, out)])


def _print_written(files: Sequence[Path]) -> None:
    console().print(f"written: {', '.join(map(str, files))}", markup=False, highlight=False, soft_wrap=True)
