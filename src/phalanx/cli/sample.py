"""Command `phalanx sample FILE.py:NAME`, which runs a user's model on data in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from phalanx.cli import by_name, options
from phalanx.cli.data.request import Request, say
from phalanx.cli.interruption import Interrupted, explain_interrupt
from phalanx.cli.saved import (
    CHECKPOINT,
    POSTERIOR,
    STORE,
    initial,
    noted,
    nothing,
    save_or_print,
    write_table,
    written,
)
from phalanx.cli.user_model import load, naming_lines_of, split_reference
from phalanx.diagnostics import Check
from phalanx.errors.message_text import count
from phalanx.language.tracing import Program
from phalanx.posterior.posterior import Posterior
from phalanx.report import print_run, write_folder
from phalanx.run.mcmc import mcmc
from phalanx.run.until import Until, until

MOST_DRAWS = 100_000
"""Most draws per chain if a condition ends the run."""


Names = list[str] | None
"""A repeatable option."""

KernelName = Annotated[
    str, typer.Option(help="The kernel: nuts, hmc, rwmh, chees, mams, laps, sgld, sghmc, or FILE.py:NAME.")
]
ReducerNames = Annotated[
    Names, typer.Option(help="A reducer, such as moments, or FILE.py:NAME that makes one; repeatable.")
]
CheckNames = Annotated[Names, typer.Option(help="FILE.py:NAME of a check for the verdict; repeatable.")]
FigureNames = Annotated[Names, typer.Option(help="FILE.py:NAME of a figure for the report; repeatable.")]
Draws = Annotated[
    int | None,
    typer.Option("--draws", "--num-samples", help="Draws per chain, 1000 by default; a limit with --until-…."),
]
TargetAcceptance = Annotated[
    float | None, typer.Option(help="Acceptance rate to tune the step size to; closer to 1: smaller steps.")
]
MaxDepth = Annotated[int | None, typer.Option(help="Most doublings of a trajectory; nuts only.")]
StepSize = Annotated[float | None, typer.Option(help="Step size; tuned by default.")]
BatchSize = Annotated[int | None, typer.Option(help="Rows per step; sgld and sghmc only.")]
UntilEss = Annotated[float | None, typer.Option(help="Stop when every effective sample size reaches this.")]
UntilRHat = Annotated[float | None, typer.Option(help="Stop when every R-hat is below this.")]
Seconds = Annotated[float | None, typer.Option(help="Stop sampling after this many seconds.")]
Keep = Annotated[
    Names, typer.Option(help="A variable to store, repeatable; by default all latent and deterministic ones.")
]
Thin = Annotated[int, typer.Option(help="Store one of every `thin` draws.")]
Checkpoint = Annotated[
    bool, typer.Option("--checkpoint", help="Save the run in the folder; phalanx resume FOLDER continues it.")
]
Store = Annotated[bool, typer.Option("--store", help="Write the draws to run.zarr in the folder as they are made.")]
SaveWarmup = Annotated[bool, typer.Option("--save-warmup", help="Keep the draws of warm-up.")]
InitialValues = Annotated[
    str | None, typer.Option(help="Initial values: prior, a saved run, or a .json file of values by variable.")
]


def sample(
    model: options.ModelPlace,
    data: options.DataFiles = None,
    kernel: KernelName = "nuts",
    reducer: ReducerNames = None,
    check: CheckNames = None,
    figure: FigureNames = None,
    chains: options.Chains = None,
    warmup: options.Warmup = None,
    draws: Draws = None,
    target_acceptance: TargetAcceptance = None,
    max_depth: MaxDepth = None,
    step_size: StepSize = None,
    batch_size: BatchSize = None,
    until_ess: UntilEss = None,
    until_r_hat: UntilRHat = None,
    seconds: Seconds = None,
    keep: Keep = None,
    thin: Thin = 1,
    checkpoint: Checkpoint = False,
    store: Store = False,
    save_warmup: SaveWarmup = False,
    init: InitialValues = None,
    missing: options.MissingEntries = None,
    devices: options.Devices = None,
    data_shards: options.DataShards = None,
    seed: options.Seed = 0,
    out: options.Out = None,
    precision: options.Precision = options.MatrixPrecision.float32,
    quiet: options.Quiet = False,
    strict: options.Strict = False,
) -> None:
    """Run your model: print the summary and a verdict; write draws, report, pictures and tables to a folder."""
    condition = _condition(until_r_hat, until_ess, seconds)
    options.start_devices(devices)  # before the user's files, which may create arrays
    hyperparameters = {"target_acceptance": target_acceptance, "max_depth": max_depth, "step_size": step_size}
    arguments = {
        "kernel": by_name.kernel(kernel, **hyperparameters, batch_size=batch_size),
        "reducers": by_name.reducers_named(reducer),
        "num_chains": 4 if chains is None else chains,
        "num_warmup": warmup,
        "num_samples": draws if draws is not None else 1000 if condition is None else MOST_DRAWS,
        "until": condition,
        "keep": keep or None,
        "thin": thin,
        "save_warmup": save_warmup,
        "missing": missing,
        "seed": seed,
        "matmul_precision": precision.value,
        "progress": not quiet,
    }
    checks = list(by_name.functions("check", check).values())
    figures = by_name.functions("figure", figure)
    program = load(model)
    arguments["init"] = None if init is None else initial(init)
    request = Request.of(program, data or [], data_shards, missing)
    folder = options.folder_for(out, split_reference(model)[1])
    request.introduce(model, quiet)
    posterior = _run(model, program, request, folder, arguments, checkpoint, store)
    _write(posterior, folder, checks, figures, store, quiet)
    _end(posterior, folder, checks, strict)


def _condition(r_hat: float | None, ess: float | None, seconds: float | None) -> Until | None:
    """Return the condition that ends the run; None without."""
    is_limited = (r_hat, ess, seconds) != (None, None, None)
    return until(r_hat=r_hat, ess=ess, seconds=seconds) if is_limited else None


def _run(
    model: str,
    program: Program,
    request: Request,
    folder: Path,
    arguments: Mapping[str, Any],
    checkpoint: bool,
    store: bool,
) -> Posterior:
    """Run the model, with its checkpoint and its store in the folder."""
    note = noted(folder, sys.argv[sys.argv.index("sample") + 1 :]) if checkpoint else nullcontext()
    lines = naming_lines_of(split_reference(model)[0])
    with lines, explain_interrupt("no draw was made, so no file was written."), note:
        return mcmc(
            program,
            request.arguments,
            mesh=request.mesh,
            checkpoint=folder / CHECKPOINT if checkpoint else None,
            store=folder / STORE if store else None,
            **arguments,
        )


def _write(
    posterior: Posterior,
    folder: Path,
    checks: Sequence[Check],
    figures: Mapping[str, Callable[[Posterior], Any]],
    store: bool,
    quiet: bool,
) -> None:
    """Write draws, table, pictures and report to the folder, and print the result."""
    with explain_interrupt(f"every file in {folder} is complete; posterior.npz is written first."):
        print_result = nothing if quiet else partial(_print_result, posterior, checks)
        files = [folder / STORE if store else save_or_print(folder / POSTERIOR, posterior.save, print_result)]
        print_result()
        table = save_or_print(folder / "summary.csv", partial(write_table, posterior), nothing)
        drawings = {name: draw(posterior) for name, draw in figures.items()}
        files += [table, *write_folder(posterior, folder, checks=checks, figures=drawings)]
    if not quiet:
        say(written(files))


def _end(posterior: Posterior, folder: Path, checks: Sequence[Check], strict: bool) -> None:
    """End the command, with the status that the verdict has.

    Raises:
        Interrupted: when the run was interrupted.
    """
    if posterior.record.interrupted:
        draws = count(posterior.num_draws, "draw")
        are = "is" if posterior.num_draws == 1 else "are"
        raise Interrupted(f"the {draws} of each chain so far {are} in {folder}.")
    if posterior.num_draws or posterior.record.reduced_draws:
        options.end(posterior.verdict(checks), strict)


def _print_result(posterior: Posterior, checks: Sequence[Check]) -> None:
    print_run(posterior, checks)
    for name, result in posterior.reduced.items():
        say([f"{name}: {result}"])
