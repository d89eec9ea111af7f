"""Commands that read what a run has saved, `phalanx summary`, `report` and `watch`; and the folder's names."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from phalanx.cli.data.data_file import read_values
from phalanx.cli.data.matching import match_data
from phalanx.cli.data.request import FileData, read_files, say
from phalanx.cli.options import DataFiles, Quiet, Strict, end
from phalanx.cli.user_model import load, naming_lines_of, split_reference
from phalanx.diagnostics import summary_table
from phalanx.errors.message_text import count
from phalanx.extras import install_command, is_installed
from phalanx.posterior.criticism.model_at_draws import with_model
from phalanx.posterior.draw_tables import angles_among
from phalanx.posterior.opening import open as open_saved
from phalanx.posterior.posterior import Posterior
from phalanx.report import print_run, print_verdict
from phalanx.report.page import file_to_write
from phalanx.run.checkpoint import IN_STORE
from phalanx.store.save_path import replacing
from phalanx.store.saves import LOCK, Saves
from phalanx.store.zarr_reading import is_zarr, root_of
from phalanx.variational.page import NO_DRAWS, PageOfFit
from phalanx.variational.result import Fit

CHECKPOINT = "checkpoint"
"""Folder of saves, in the folder that `phalanx sample` writes to."""

STORE = "run.zarr"
"""Store of draws in that folder."""

POSTERIOR = "posterior.npz"
"""Posterior in that folder."""

COMMAND = "command.json"
"""Arguments of the command in that folder, with which `phalanx resume` repeats it."""

FIT = "fit.npz"
"""Name of the fit in the folder of `phalanx fit`."""

Saved = Annotated[
    Path,
    typer.Argument(
        help="A folder of phalanx sample or fit, a store, a checkpoint, a posterior.npz, or a fit.npz.", metavar="PATH"
    ),
]


_MODEL_HELP = (
    "The run's model, and with --data its data: the report then has the prior, a predictive check and leave-one-out "
    "cross-validation. For a run with --checkpoint both are in the folder's command.json."
)


def summary(path: Saved, strict: Strict = False) -> None:
    """Print the summary and the verdict of a saved run, also while it goes on, or of a saved fit."""
    fit, draws = _saved_fit(path) or (None, opened(path))
    if draws is not None:
        print_run(draws)
        end(draws.verdict(), strict)
    elif fit is not None:
        say([repr(fit), f"{fit.timing.compile:.1f} s compiling, {fit.timing.warmup:.1f} s learning", NO_DRAWS])
        print_verdict(fit.verdict())
        end(fit.verdict(), strict)


def report(
    path: Saved,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    names: Annotated[
        list[str] | None, typer.Option("--name", help="A variable to show; repeatable. Without it, all are shown.")
    ] = None,
    beside: Annotated[Path | None, typer.Option(help="Another saved run, to compare with.")] = None,
    model: Annotated[str | None, typer.Option(help=_MODEL_HELP, metavar="FILE.py:NAME")] = None,
    data: DataFiles = None,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Write the report of a saved run, also while it goes on, or of a saved fit."""
    if data and model is None:
        raise ValueError("report: --data is for the model: name it, --model FILE.py:NAME.")
    other = None if beside is None else opened(beside)
    if (result := _saved_fit(path)) is None:
        posterior = _with_model(opened(path), model, data)
        page = posterior.report(out, names=names or None, beside=other)
        verdict = posterior.verdict()
    else:
        fit, draws = result
        verdict = fit.verdict()
        content = PageOfFit(fit.record, fit.timing, fit.steps, fit.losses.elbo, verdict)
        content = content if draws is None else content.with_draws(_with_model(draws, model, data))
        if draws is None and model is not None:
            raise ValueError(f"report: --model draws data anew at draws. {NO_DRAWS}")
        page = content.write(file_to_write("report", out, "fit.html"), names or None, other, {})
    if not quiet:
        say([f"written: {page}"])
    end(verdict, strict)


def _with_model(posterior: Posterior, reference: str | None, paths: list[Path] | None) -> Posterior:
    """Return the posterior with the model of a file, if one is named, and its data; the run's numbers fill in."""
    if reference is None:
        return posterior
    program = load(reference)
    data = read_files(paths or [])
    data_and_scalars = FileData({**posterior.record.scalars, **data}, data.files)
    with naming_lines_of(split_reference(reference)[0]):
        return with_model(posterior, program, match_data(program, data_and_scalars).arguments)


def watch(path: Saved, every: Annotated[float, typer.Option(help="Seconds between two lines.", min=0.1)] = 5.0) -> None:
    """Print a line on a run every few seconds until it has ended: draws, R-hat, effective draws, divergences."""
    while True:
        if (posterior := _find_saved(path)) is None:
            say(["no draws yet"])
        else:
            say([_line(posterior)])
            if not posterior.record.interrupted:
                return
        time.sleep(every)


@contextmanager
def noted(folder: Path, arguments: list[str]) -> Iterator[None]:
    """Note the arguments of `phalanx sample` in a `with` block, with which `resume` repeats it.

    The note of an earlier run is put back if the run is refused.
    """
    file = folder / COMMAND
    before = file.read_text(encoding="utf-8") if file.is_file() else None
    _write(file, json.dumps({"folder": os.getcwd(), "arguments": arguments}, indent=1))
    try:
        yield
    except (ValueError, TypeError, FileExistsError):
        if before is not None:
            _write(file, before)
        raise


def save_or_print(file: Path, save: Callable[[Path], Path], print_result: Callable[[], None]) -> Path:
    """Write a result to a file; one that cannot be written is printed first, since it ends with this process.

    The file gets its name when it is complete, so that an earlier one stays as it was.

    Raises:
        OSError: naming the file, and what to do.
    """
    try:
        return save(file)
    except OSError as error:
        print_result()
        raise OSError(
            f"{file} cannot be written ({error}). Make room on the disk, or name another folder with --out, and run "
            f"again."
        ) from error


def nothing() -> None:
    """Do nothing: print no result."""


def write_table(posterior: Posterior, file: Path) -> Path:
    """Write the summary as a table of comma-separated values, or leave the file as it was."""
    with replacing(file) as draft:
        posterior.summary().to_csv(draft, index_label="variable")
    return file


def _write(file: Path, text: str) -> None:
    with replacing(file) as partial:
        partial.write_text(text, encoding="utf-8")


def read_command(path: Path) -> tuple[str, list[str]]:
    """Return the folder in which `phalanx sample` was called, and its arguments, given a path of its results.

    Raises:
        FileNotFoundError: when the folder is not one of `phalanx sample --checkpoint`.
        ValueError: when the file is damaged.
    """
    within = path.resolve()
    folder = within.parent if within.name in (CHECKPOINT, STORE) else within
    file = folder / COMMAND
    if not (folder / CHECKPOINT).is_dir() or not file.is_file():
        raise FileNotFoundError(
            f"resume: {str(path)!r} is not the folder of a run of phalanx sample --checkpoint. A run of a script is "
            f"continued by the script: call it again with the same checkpoint=."
        )
    try:
        command = json.loads(file.read_text(encoding="utf-8"))
        folder = command["folder"]
        arguments = command["arguments"]
        if not isinstance(folder, str) or not all(isinstance(one, str) for one in arguments):
            raise TypeError("it holds something other than words")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"resume: {str(file)!r} is damaged: {error}. Repeat the command that made it.") from None
    return folder, arguments


def written(files: Sequence[Path]) -> list[str]:
    """Return a line that names the files written, and one that says how to install the parts of a report."""
    lines = [f"written: {', '.join(map(str, files))}"]
    if not is_installed("matplotlib") or not is_installed("jinja2"):
        lines.append(f"report.html and pictures need matplotlib and jinja2: {install_command('matplotlib')}")
    return lines


def initial(source: str) -> Any:
    """Return initial values for `phx.mcmc` from the word `prior`, a saved run, or a file of values by variable.

    Raises:
        FileNotFoundError, ValueError: when the path does not exist, or holds something else.
    """
    if source == "prior":
        return source
    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(
            f"--init {source}: the file does not exist in {path.absolute().parent}. Give prior, a folder or file of a "
            f"saved run, or a .json file of values by variable."
        )
    return read_values(path, "--init") if path.suffix.lower() == ".json" else opened(path)


def opened(path: Path) -> Posterior:
    """Return a saved run; raise if it has no draws yet."""
    if (posterior := _find_saved(path)) is None:
        raise ValueError(f"{str(path)!r} holds no draws yet.")
    return posterior


def _find_saved(path: Path) -> Posterior | None:
    """Return what was saved at a path, or in the folder of `phalanx sample` there; None before the first draw.

    Raises:
        ValueError: when the path is a checkpoint of a run whose draws are elsewhere.
    """
    saves = [] if _stores(path) else (path / CHECKPOINT).glob("save-*.json")
    inside = [path / POSTERIOR, path / STORE / "zarr.json", *saves]
    newest = max((one for one in inside if one.is_file()), key=lambda file: file.stat().st_mtime, default=None)
    if newest is None and ((path / COMMAND).is_file() or _has_begun(path)):
        return None
    posterior = open_saved(path if newest is None else newest if newest.name == POSTERIOR else newest.parent)
    if not isinstance(posterior, Posterior):
        raise ValueError(
            f"{str(path)!r} has the draws of {len(posterior)} data sets, of a run with each=. Read them in Python: "
            f"phx.open({str(path)!r}).of(name)."
        )
    if posterior.num_draws or posterior.record.reduced_draws:
        return posterior
    if newest is None and path.is_dir() and not is_zarr(path):
        _check_has_draws(path)
    return None


def _stores(path: Path) -> bool:
    """Return whether the run whose checkpoint is in a folder of `phalanx sample` has its draws in the store there."""
    store = path / STORE
    saves = str((path / CHECKPOINT).resolve())
    return is_zarr(store) and root_of(store, str(store))[1].get("checkpoint") == saves


def _has_begun(path: Path) -> bool:
    """Return whether a folder is a checkpoint in which no save has been made."""
    return (path / LOCK).is_file() and not Saves(path, str(path), "run").manifests


def _check_has_draws(path: Path) -> None:
    """Raise if a checkpoint is of a run that keeps its draws elsewhere."""
    identity = (Saves(path, repr(str(path)), "run").newest() or {}).get("identity", {})
    identity = identity.get("said", identity)  # earlier releases wrote these values only
    if identity.get("store") == IN_STORE:
        raise ValueError(f"{str(path)!r} has no draws: they are in the store of its run. Give the folder of store=.")
    if identity.get("call") == "phx.stream":
        raise ValueError(f"{str(path)!r} has no draws: phx.stream passes them on to its caller.")


def _saved_fit(path: Path) -> tuple[Fit, Posterior | None] | None:
    """Return the fit in a file, or in the folder of `phalanx fit`, and its draws; None if a run was saved there."""
    file = path / FIT if path.is_dir() else path
    try:
        fit = Fit.load(file)
    except (FileNotFoundError, ValueError):
        if file != path and file.exists():
            raise
        return None
    draws = file.parent / POSTERIOR
    posterior = Posterior.load(draws) if draws.is_file() else None
    if posterior is None or (posterior.record.started, posterior.record.kernel) == (
        fit.record.started,
        fit.record.kernel,
    ):
        return fit, posterior
    return (fit, None) if file == path else None  # a later run has written to the folder


def _line(posterior: Posterior) -> str:
    draws = posterior.num_draws or posterior.record.reduced_draws
    parts = [f"{count(posterior.num_chains, 'chain')} x {count(draws, 'draw')}"]
    if posterior.num_draws >= 4:  # the least for halves of chains
        table = summary_table(posterior.draws, angles=angles_among(posterior.record.latents))
        parts.append(f"largest R-hat {np.nanmax(table['r_hat']):.3f}, least ESS {np.nanmin(table['ess_bulk']):,.0f}")
    parts.append(count(posterior.num_divergences, "divergence"))
    return "; ".join([*parts, "in progress" if posterior.record.interrupted else "complete"])
