"""`phalanx sample FILE.py:NAME`: run a user's model on data in a file."""

from __future__ import annotations

import inspect
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from phalanx.cli.data_file import read_data
from phalanx.cli.interruption import Interrupted, saying
from phalanx.cli.matching import match_data, shard_rows
from phalanx.cli.options import (
    Chains,
    DataShards,
    Devices,
    MatrixPrecision,
    Out,
    Precision,
    Seed,
    Warmup,
    start_devices,
)
from phalanx.cli.user_model import load_model, naming_lines_of, split_place
from phalanx.cli.words import levels
from phalanx.demos.options import mesh_with
from phalanx.kernels.chees import chees
from phalanx.kernels.hmc import hmc
from phalanx.kernels.kernel import Kernel
from phalanx.kernels.mams import mams
from phalanx.kernels.nuts import nuts
from phalanx.kernels.rwmh import rwmh
from phalanx.posterior.posterior import Posterior
from phalanx.report import console, print_run, write_folder
from phalanx.run.mcmc import mcmc
from phalanx.run.until import Until, until


class KernelName(StrEnum):
    """The kernels that need no further choices."""

    nuts = "nuts"
    hmc = "hmc"
    rwmh = "rwmh"
    chees = "chees"
    mams = "mams"


_KERNELS = {"nuts": nuts, "hmc": hmc, "rwmh": rwmh, "chees": chees, "mams": mams}

MOST_DRAWS = 100_000
"""Draws per chain at most where a condition ends the run."""


def sample(
    model: Annotated[str, typer.Argument(help="A function in a Python file.", metavar="FILE.py:NAME")],
    data: Annotated[Path | None, typer.Option(help="Its arguments: an .npz, .csv or .json file.")] = None,
    kernel: Annotated[KernelName, typer.Option(help="The Markov kernel.")] = KernelName.nuts,
    chains: Chains = None,
    warmup: Warmup = None,
    draws: Annotated[
        int | None, typer.Option("--draws", "--num-samples", help="Draws per chain, or the most with --until-…; 1000.")
    ] = None,
    target_acceptance: Annotated[
        float | None, typer.Option(help="Acceptance that the step size is tuned to; closer to 1 for smaller steps.")
    ] = None,
    max_depth: Annotated[int | None, typer.Option(help="Doublings of a trajectory at most; nuts only.")] = None,
    step_size: Annotated[float | None, typer.Option(help="Step size, tuned when it is not given.")] = None,
    until_ess: Annotated[float | None, typer.Option(help="Stop when every effective sample size is this.")] = None,
    until_r_hat: Annotated[float | None, typer.Option(help="Stop when every R-hat is below this.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop sampling after so many seconds.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="A variable to store, may be repeated; all latent ones by default.")
    ] = None,
    thin: Annotated[int, typer.Option(help="Keep every `thin`-th draw.")] = 1,
    devices: Devices = None,
    data_shards: DataShards = None,
    seed: Seed = 0,
    out: Out = None,
    precision: Precision = MatrixPrecision.float32,
) -> None:
    """Run your model: prints the summary and a verdict; writes draws, report, pictures and tables to a folder."""
    condition = _condition(until_r_hat, until_ess, seconds)
    chosen = _kernel(kernel, target_acceptance=target_acceptance, max_depth=max_depth, step_size=step_size)
    path, name = split_place(model)
    start_devices(devices)  # before the user's file, which may make arrays
    program = load_model(model)
    matched = match_data(program, {} if data is None else read_data(data))
    folder = out or Path("out") / name
    folder.mkdir(parents=True, exist_ok=True)  # before a long run, not after it
    arguments, mesh, spread = matched.arguments, None, []
    if data_shards is not None:
        mesh = mesh_with(data_shards)
        arguments, spread = shard_rows(arguments, mesh)
    _introduce(model, data, arguments, spread, matched.left_out)
    with naming_lines_of(path), saying("no draw had been made, so that nothing is written."):
        posterior = mcmc(
            program,
            arguments,
            kernel=chosen,
            num_chains=4 if chains is None else chains,
            num_warmup=warmup,
            num_samples=draws if draws is not None else 1000 if condition is None else MOST_DRAWS,
            until=condition,
            seed=seed,
            mesh=mesh,
            keep=keep or None,
            thin=thin,
            matmul_precision=precision.value,
        )
    with saying(f"of the files in {folder}, those that are there are whole; posterior.npz comes first."):
        files = [posterior.save(folder / "posterior.npz")]
        print_run(posterior)
        files += _write(posterior, folder)
    console().print(f"written: {', '.join(map(str, files))}", markup=False, highlight=False, soft_wrap=True)
    if posterior.record.interrupted:
        raise Interrupted(f"the {posterior.num_draws:,} draws of each chain until then are in {folder}.")


def _kernel(name: KernelName, **given: Any) -> Kernel:
    """The kernel with the choices made; those that it does not have are refused."""
    make = _KERNELS[name.value]
    chosen = {option: value for option, value in given.items() if value is not None}
    if unknown := [option for option in chosen if option not in inspect.signature(make).parameters]:
        hint = f"--{unknown[0].replace('_', '-')}"
        raise typer.BadParameter(f"the kernel {name.value} has no {unknown[0]}.", param_hint=hint)
    return make(**chosen)


def _condition(r_hat: float | None, ess: float | None, seconds: float | None) -> Until | None:
    """When to stop, where the user says so."""
    return None if r_hat is None and ess is None and seconds is None else until(r_hat, ess, seconds)


def _introduce(
    model: str, path: Path | None, arguments: dict[str, Any], spread: list[str], left_out: list[str]
) -> None:
    to = console()
    to.rule(f"[bold]{Path(model).name}")
    shown = ", ".join(_describe(name, value) for name, value in arguments.items())
    lines = [f"data: {path}: {shown or 'nothing that the model asks for'}"] if path else []
    if spread:
        lines.append(f"spread over devices: the rows of {', '.join(spread)}")
    if left_out:
        lines.append(f"left out, since the model does not ask for it: {', '.join(left_out)}")
    for name, value in arguments.items():
        if words := levels(value):
            lines.append(f"{name}: {', '.join(f'{word} is {number}' for number, word in enumerate(words))}")
    for line in lines:
        to.print(line, markup=False, highlight=False, soft_wrap=True)


def _describe(name: str, value: Any) -> str:
    return f"{name} {list(value.shape)}" if np.ndim(value) else name


def _write(posterior: Posterior, folder: Path) -> list[Path]:
    """Write the table for everyone, and what every run writes."""
    table = folder / "summary.csv"
    posterior.summary().to_csv(table, index_label="variable")
    return [table, *write_folder(posterior, folder)]
