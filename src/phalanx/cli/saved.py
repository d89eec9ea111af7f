"""Commands that read what a run has saved, `phalanx summary`, `report` and `watch`; and the folder's names."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from phalanx.diagnostics import summary_table
from phalanx.errors.words import count
from phalanx.posterior.opening import open as open_saved
from phalanx.posterior.posterior import Posterior
from phalanx.report import console, print_run
from phalanx.store.save_path import replacing

CHECKPOINT, STORE, POSTERIOR, COMMAND = "checkpoint", "run.zarr", "posterior.npz", "command.json"
"""Names in the folder that `phalanx sample` writes to."""

Saved = Annotated[
    Path, typer.Argument(help="A folder of phalanx sample, a store, a checkpoint, or a posterior.npz.", metavar="PATH")
]


def summary(path: Saved) -> None:
    """Print the summary and the verdict of a saved run, also while it goes on."""
    print_run(_opened(path))


def report(path: Saved, out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html")) -> None:
    """Write the report of a saved run, also while it goes on."""
    _say(f"written: {_opened(path).report(out)}")


def watch(path: Saved, every: Annotated[float, typer.Option(help="Seconds between two lines.", min=0.1)] = 5.0) -> None:
    """Print a line on a run every few seconds until it has ended: draws, R-hat, effective draws, divergences."""
    while True:
        posterior = _opened(path)
        _say(_line(posterior))
        if not posterior.record.interrupted:
            return
        time.sleep(every)


def write_command(folder: Path, arguments: list[str]) -> None:
    """Note the arguments of `phalanx sample`, with which `resume` repeats it."""
    with replacing(folder / COMMAND) as partial:
        partial.write_text(json.dumps({"folder": os.getcwd(), "arguments": arguments}, indent=1), encoding="utf-8")


def read_command(path: Path) -> tuple[str, list[str]]:
    """Return the folder in which `phalanx sample` was called, and its arguments.

    Raises:
        FileNotFoundError: when the folder is not one of `phalanx sample --checkpoint`.
        ValueError: when the file is damaged.
    """
    file = path / COMMAND
    if not (path / CHECKPOINT).is_dir() or not file.is_file():
        raise FileNotFoundError(
            f"resume: {str(path)!r} is not the folder of a run of phalanx sample --checkpoint. A run of a script is "
            f"continued by the script: call it again with the same checkpoint=."
        )
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        folder, arguments = found["folder"], found["arguments"]
        if not isinstance(folder, str) or not all(isinstance(one, str) for one in arguments):
            raise TypeError("it holds something other than words")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"resume: {str(file)!r} is damaged: {error}. Repeat the command that made it.") from None
    return folder, arguments


def _opened(path: Path) -> Posterior:
    inside = [path / name for name in (POSTERIOR, STORE, CHECKPOINT)] if (path / COMMAND).is_file() else []
    posterior = open_saved(next((found for found in inside if found.exists()), path))
    if not posterior.num_draws and not posterior.record.folded_draws:
        raise ValueError(f"{str(path)!r} holds no draws yet.")
    return posterior


def _line(posterior: Posterior) -> str:
    words = [f"{count(posterior.num_chains, 'chain')} x {count(posterior.num_draws, 'draw')}"]
    if posterior.num_draws >= 4:  # the least for halves of chains
        table = summary_table(posterior.draws)
        words.append(f"largest R-hat {np.nanmax(table['r_hat']):.3f}, least ESS {np.nanmin(table['ess_bulk']):,.0f}")
    words.append(count(posterior.num_divergences, "divergence"))
    return "; ".join([*words, "in progress" if posterior.record.interrupted else "complete"])


def _say(line: str) -> None:
    console().print(line, markup=False, highlight=False, soft_wrap=True)
