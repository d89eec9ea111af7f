"""Command `phalanx fit FILE.py:NAME`, which fits a guide to a user's model on data in files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from phalanx.cli import by_name, options
from phalanx.cli.data.request import Request, say
from phalanx.cli.interruption import Interrupted, explain_interrupt
from phalanx.cli.saved import FIT, POSTERIOR, nothing, opened, save_or_print, write_table, written
from phalanx.cli.user_model import load, naming_lines_of, split_reference
from phalanx.diagnostics import Verdict
from phalanx.extras import is_installed
from phalanx.report import print_run, write_result
from phalanx.variational.fit import fit as fit_guide
from phalanx.variational.result import Fit

_GUIDE_HELP = "The guide: mean_field, full_rank, low_rank, structured, flow, laplace, pathfinder, or FILE.py:NAME."
_OPTIMIZER_HELP = "A rate, such as 0.01, or lbfgs, or batch-and-match; Adam at 0.05 by default."


def fit(
    model: options.ModelPlace,
    data: options.DataFiles = None,
    guide: Annotated[str, typer.Option(help=_GUIDE_HELP)] = "full_rank",
    steps: Annotated[int, typer.Option("--steps", "--num-steps", help="The most steps.")] = 20_000,
    particles: Annotated[int, typer.Option("--particles", "--num-particles", help="Draws of a step.")] = 8,
    batch_size: Annotated[int | None, typer.Option(help="Rows of a step; all by default.")] = None,
    optimizer: Annotated[str | None, typer.Option(help=_OPTIMIZER_HELP)] = None,
    draws: Annotated[int, typer.Option(help="Draws from the guide to write.")] = 4000,
    init: Annotated[str | None, typer.Option(help="A saved fit to continue, or a saved run.")] = None,
    missing: options.MissingEntries = None,
    devices: options.Devices = None,
    data_shards: options.DataShards = None,
    seed: options.Seed = 0,
    out: options.Out = None,
    precision: options.Precision = options.MatrixPrecision.float32,
    quiet: options.Quiet = False,
    strict: options.Strict = False,
) -> None:
    """Fit a guide to your model: print the summary and a verdict; write fit, draws, report and table to a folder."""
    path, name = split_reference(model)
    options.start_devices(devices)
    guide_object = by_name.guide(guide)
    program = load(model)
    request = Request.of(program, data or [], data_shards, missing)
    folder = options.folder_for(out, name)
    request.introduce(model, quiet)
    with naming_lines_of(path), explain_interrupt("no step was made, so no file was written."):
        fit_result = fit_guide(
            program,
            guide_object,
            request.arguments,
            optimizer=_optimizer(optimizer),
            num_steps=steps,
            num_particles=particles,
            batch_size=batch_size,
            init=None if init is None else _initial(Path(init)),
            mesh=request.mesh,
            seed=seed,
            missing=missing,
            matmul_precision=precision.value,
            progress=not quiet,
        )
    verdict = _write(fit_result, folder, draws, seed, quiet)
    if fit_result.record.interrupted:
        raise Interrupted(f"the fit so far is in {folder}.")
    options.end(verdict, strict)


def _write(fit_result: Fit, folder: Path, draws: int, seed: int, quiet: bool) -> Verdict:
    """Write the fit, its draws, table and report to a folder, and print them; return the verdict."""
    with explain_interrupt(f"every file in {folder} is complete; {FIT} is written first."):
        print_draws = nothing if quiet else lambda: print_run(fit_result.posterior(draws, seed=seed))
        files = [save_or_print(folder / FIT, fit_result.save, print_draws)]
        posterior = fit_result.posterior(draws, seed=seed)
        print_result = nothing if quiet else partial(print_run, posterior)
        files.append(save_or_print(folder / POSTERIOR, posterior.save, print_result))
        verdict = posterior.verdict()
        print_result()
        files.append(save_or_print(folder / "summary.csv", partial(write_table, posterior), nothing))
        if is_installed("matplotlib") and is_installed("jinja2"):
            files.append(fit_result.report(folder / "report.html"))
        verdict_entries = {"good": verdict.good, "grade": verdict.grade, "headline": verdict.headline}
        files.append(write_result({"verdict": verdict_entries, "steps": fit_result.steps}, folder))
    if not quiet:
        say(written(files))
    return verdict


def _optimizer(word: str | None) -> Any:
    """Return a rate as a number, and the name of an optimiser as it is."""
    try:
        return None if word is None else float(word)
    except ValueError:
        return word


def _initial(path: Path) -> Any:
    """Return the fit in a file or in the folder of `phalanx fit`; of another path the saved run."""
    if (path / FIT).is_file():
        return Fit.load(path / FIT)
    try:
        return Fit.load(path) if path.is_file() else opened(path)
    except ValueError:  # a file that is no fit
        return opened(path)
