"""Command `phalanx predict FILE.py:NAME --run PATH`, which draws the observed variables of a model anew."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from phalanx.cli.data.matching import Matched, match_data
from phalanx.cli.data.request import read_files, say
from phalanx.cli.interruption import explain_interrupt
from phalanx.cli.options import DataFiles, Devices, ModelPlace, Quiet, Seed, folder_for, start_devices
from phalanx.cli.saved import opened
from phalanx.cli.user_model import load, naming_lines_of, split_reference
from phalanx.diagnostics.elements import element_names
from phalanx.posterior.predictive import PredictiveDraws
from phalanx.posterior.prior import predictive
from phalanx.store.save_path import replacing

SHOWN = 40
"""Most rows of the printed table."""

INTERVAL = 0.03, 0.97
"""Quantiles of the draws that bound the interval in the table."""

_STATISTICS = ["mean", "sd", "3%", "97%"]


def predict(
    model: ModelPlace,
    data: DataFiles = None,
    run: Annotated[Path | None, typer.Option(help="A saved run; without one, draws are from the prior.")] = None,
    draws: Annotated[int, typer.Option(help="Draws from the prior; with --run, all draws of the run are used.")] = 1000,
    given: Annotated[
        list[str] | None,
        typer.Option(help="An observed variable to hold at its data; repeatable. By default, if others depend on it."),
    ] = None,
    redraw: Annotated[bool, typer.Option("--redraw", help="Hold none: draw all observed variables anew.")] = False,
    devices: Devices = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Folder to write to; out/NAME-predictions by default.")] = None,
    quiet: Quiet = False,
) -> None:
    """Draw your model's observed variables anew, on these data, from a saved run or from the prior."""
    path, name = split_reference(model)
    if given and redraw:
        raise typer.BadParameter("--redraw draws all observed variables, so that --given has no use: leave one out.")
    posterior = None if run is None else opened(run)
    start_devices(devices)
    program = load(model)
    scalars = {} if posterior is None else posterior.record.scalars
    columns = read_files(data or [])
    arguments = _match(program, columns, scalars)
    missing = _without_value(program, columns, scalars)
    folder = folder_for(out, f"{name}-predictions")
    if not quiet:
        unused = arguments.left_out
        say([f"the model does not ask for {', '.join(unused)}: they stand beside the predictions"] if unused else [])
        say([f"not among the data, so drawn by the model: {', '.join(missing)}"] if missing else [])
    held_names = [] if redraw else given or None
    with naming_lines_of(path), explain_interrupt("no file was written."):
        if posterior is None:
            predictions = predictive(program, arguments.arguments, given=held_names, num_draws=draws, seed=seed)
        else:
            predictions = posterior.predictive(arguments.arguments, model=program, given=held_names, seed=seed)
    leading = 1 if posterior is None else 2
    files = [folder / "predictions.npz", folder / "predictions.csv"]
    with replacing(files[0]) as partial, partial.open("wb") as file:
        np.savez(file, **predictions)  # pyright: ignore[reportArgumentType]
    table = _table(predictions, leading)
    # without a run, variables that have the name of an argument are those that have its rows
    rows = inspect.signature(program).parameters if posterior is None else {*predictions} - {*posterior.record.latents}
    beside = _beside(predictions, leading, rows, {name: columns[name] for name in arguments.left_out})
    table.assign(**beside).to_csv(files[1], index_label="variable")
    if not quiet:
        more = [f"({len(table) - SHOWN:,} more rows in predictions.csv)"] if len(table) > SHOWN else []
        say([table.head(SHOWN).to_string(float_format="{:.4g}".format), *more])
        say([f"written: {', '.join(map(str, files))}"])


def _required_arguments(program: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that a model cannot do without."""
    parameters = inspect.signature(program).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _without_value(program: Callable[..., Any], data: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Return the names of the needed arguments without a value, which the model draws anew."""
    return [name for name in _required_arguments(program) if name not in data and name not in values]


def _match(program: Callable[..., Any], data: Mapping[str, Any], values: Mapping[str, Any]) -> Matched:
    """Return the model's arguments; numbers and words that the run recorded fill in, and None for the others."""
    placeholders = dict.fromkeys(_without_value(program, data, values))
    recorded_values = {
        name: values[name] for name in _required_arguments(program) if name in values and name not in data
    }
    return match_data(program, {**data, **placeholders, **recorded_values})


def _beside(
    predictions: PredictiveDraws, leading: int, names: Collection[str], columns: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Return columns of the data that the model does not take, such as a row's `id`, for the rows of the table.

    Args:
        predictions: predictive draws.
        leading: number of axes of the draws.
        names: variables that may have an entry for each row of the data.
        columns: these columns by name.
    """
    beside: dict[str, list[Any]] = {}
    for column, cells in columns.items():
        if np.ndim(cells) != 1:
            continue
        cells_of: list[Any] = []
        for name, values in predictions.items():
            shape = values.shape[leading:]
            has_rows = name in names and shape[:1] == (len(cells),) and not any(predictions.labels[name][:1])
            cells_of += np.repeat(cells, math.prod(shape[1:])).tolist() if has_rows else [""] * math.prod(shape)
        if any(cell != "" for cell in cells_of):
            beside[column if column not in _STATISTICS else f"{column}_data"] = cells_of
    return beside


def _table(predictions: PredictiveDraws, leading: int) -> Any:
    """Return a table of the mean, the standard deviation and an interval of each predicted number."""
    import pandas  # as slow to import as all of Phalanx

    names: list[str] = []
    rows: list[tuple[float, ...]] = []
    for name, values in predictions.items():
        flat = np.asarray(values, float).reshape(-1, *values.shape[leading:])
        flat = flat.reshape(len(flat), -1)
        low, high = np.quantile(flat, INTERVAL, axis=0)
        names += element_names(name, values.shape[leading:], predictions.labels)
        rows += zip(flat.mean(0), flat.std(0), low, high, strict=True)
    return pandas.DataFrame(rows, index=names, columns=_STATISTICS)
