"""Command `phalanx sample FILE.py:NAME`, which runs a user's model on data in a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

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
from phalanx.errors.words import count
from phalanx.posterior.posterior import Posterior
from phalanx.report import print_run, write_folder
from phalanx.run.mcmc import mcmc
from phalanx.run.until import until

MOST_DRAWS = 100_000
"""Most draws per chain if a condition ends the run."""


def sample(
    model: options.ModelPlace,
    data: options.DataFiles = None,
    kernel: Annotated[
        str, typer.Option(help="The kernel: nuts, hmc, rwmh, chees, mams, laps, sgld, sghmc, or FILE.py:NAME.")
    ] = "nuts",
    reducer: Annotated[
        list[str] | None, typer.Option(help="A reducer, such as moments, or FILE.py:NAME that makes one; repeatable.")
    ] = None,
    check: Annotated[
        list[str] | None, typer.Option(help="FILE.py:NAME of a check for the verdict; repeatable.")
    ] = None,
    figure: Annotated[
        list[str] | None, typer.Option(help="FILE.py:NAME of a figure for the report; repeatable.")
    ] = None,
    chains: options.Chains = None,
    warmup: options.Warmup = None,
    draws: Annotated[
        int | None,
        typer.Option("--draws", "--num-samples", help="Draws per chain, 1000 by default; a limit with --until-…."),
    ] = None,
    target_acceptance: Annotated[
        float | None, typer.Option(help="Acceptance rate to tune the step size to; closer to 1: smaller steps.")
    ] = None,
    max_depth: Annotated[int | None, typer.Option(help="Most doublings of a trajectory; nuts only.")] = None,
    step_size: Annotated[float | None, typer.Option(help="Step size; tuned by default.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per step; sgld and sghmc only.")] = None,
    until_ess: Annotated[float | None, typer.Option(help="Stop when every effective sample size reaches this.")] = None,
    until_r_hat: Annotated[float | None, typer.Option(help="Stop when every R-hat is below this.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop sampling after this many seconds.")] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="A variable to store, repeatable; by default all latent and deterministic ones."),
    ] = None,
    thin: Annotated[int, typer.Option(help="Store one of every `thin` draws.")] = 1,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Save the run in the folder; phalanx resume FOLDER continues it.")
    ] = False,
    store: Annotated[
        bool, typer.Option("--store", help="Write the draws to run.zarr in the folder as they are made.")
    ] = False,
    save_warmup: Annotated[bool, typer.Option("--save-warmup", help="Keep the draws of warm-up.")] = False,
    init: Annotated[
        str | None,
        typer.Option(help="Initial values: prior, a saved run, or a .json file of values by variable."),
    ] = None,
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
    is_limited = (until_r_hat, until_ess, seconds) != (None, None, None)
    condition = until(r_hat=until_r_hat, ess=until_ess, seconds=seconds) if is_limited else None
    path, name = split_reference(model)
    options.start_devices(devices)  # before the user's files, which may create arrays
    chosen = by_name.kernel(
        kernel, target_acceptance=target_acceptance, max_depth=max_depth, step_size=step_size, batch_size=batch_size
    )
    reducers, checks = by_name.reducers_named(reducer), list(by_name.functions("check", check).values())
    figures = by_name.functions("figure", figure)
    program = load(model)
    start = None if init is None else initial(init)
    request = Request.of(program, data or [], data_shards, missing)
    folder = out or Path("out") / name
    folder.mkdir(parents=True, exist_ok=True)  # an error comes before a long run
    if not quiet:
        say(request.introduction, Path(model).name)
    note = noted(folder, sys.argv[sys.argv.index("sample") + 1 :]) if checkpoint else nullcontext()
    with naming_lines_of(path), explain_interrupt("no draw was made, so no file was written."), note:
        posterior = mcmc(
            program,
            request.arguments,
            kernel=chosen,
            num_chains=4 if chains is None else chains,
            num_warmup=warmup,
            num_samples=draws if draws is not None else 1000 if condition is None else MOST_DRAWS,
            until=condition,
            seed=seed,
            mesh=request.mesh,
            init=start,
            missing=missing,
            keep=keep or None,
            reducers=reducers,
            thin=thin,
            checkpoint=folder / CHECKPOINT if checkpoint else None,
            store=folder / STORE if store else None,
            save_warmup=save_warmup,
            matmul_precision=precision.value,
            progress=not quiet,
        )
    with explain_interrupt(f"every file in {folder} is complete; posterior.npz is written first."):
        print_result = nothing if quiet else partial(_print_result, posterior, checks)
        files = [folder / STORE if store else save_or_print(folder / POSTERIOR, posterior.save, print_result)]
        print_result()
        table = save_or_print(folder / "summary.csv", partial(write_table, posterior), nothing)
        drawn = {name: draw(posterior) for name, draw in figures.items()}
        files += [table, *write_folder(posterior, folder, checks=checks, figures=drawn)]
    if not quiet:
        say(written(files))
    if posterior.record.interrupted:
        made, are = count(posterior.num_draws, "draw"), "is" if posterior.num_draws == 1 else "are"
        raise Interrupted(f"the {made} of each chain so far {are} in {folder}.")
    if posterior.num_draws or posterior.record.reduced_draws:
        options.end(posterior.verdict(checks), strict)


def _print_result(posterior: Posterior, checks: Sequence[Check]) -> None:
    print_run(posterior, checks)
    for name, result in posterior.reduced.items():
        say([f"{name}: {result}"])
