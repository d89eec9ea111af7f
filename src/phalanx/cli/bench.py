"""Command `phalanx bench [NAME ...]`, which times Phalanx and its alternatives on the user's machine.

The scripts are those of `benchmarks/`; a wheel contains them in `phalanx/_benchmarks`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

from phalanx.extras import install_command, is_installed
from phalanx.report.terminal import console
from phalanx.run.describe import versions


class Benchmark(NamedTuple):
    """A script of `benchmarks/`: what it measures, the packages it needs, and whether it runs by default."""

    what: str
    needs: tuple[str, ...] = ()
    by_default: bool = False


BENCHMARKS = {
    "fresh_process": Benchmark(
        "eight schools from a fresh process, against NumPyro; nutpie and stanli if installed", by_default=True
    ),
    "many_chains": Benchmark("256 chains of NUTS, against NumPyro", by_default=True),
    "mixture": Benchmark("a billion draws by random-walk Metropolis, against plain loops", by_default=True),
    "chees": Benchmark("ChEES-HMC with 256 chains, against BlackJAX", ("blackjax", "optax")),
    "smc": Benchmark("evidence by particles, against BlackJAX's tempered SMC", ("blackjax",)),
    "lanes_last": Benchmark("value and gradient of many chains, against jax.vmap"),
    "rerun_overhead": Benchmark("a second call with another seed"),
    "fits": Benchmark("variational fits, against NumPyro's SVI; an hour", ("optax",)),
    "covertype": Benchmark("NUTS on 581,012 x 55, against NumPyro and BlackJAX; hours", ("blackjax", "optax")),
}
PLACES = (Path(__file__).parents[1] / "_benchmarks", Path(__file__).parents[3] / "benchmarks")
"""Folders of the scripts: in an installed wheel, and in a checkout."""


def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Benchmarks to run.", metavar="[NAME]...")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Timed runs of each library, in turns.")] = None,
    out: Annotated[Path, typer.Option(help="The JSON file to write.")] = Path("out/bench.json"),
) -> None:
    """Time Phalanx and its alternatives in turns on this machine; print wins and losses, and write them as JSON."""
    benchmark_names = names or [name for name, benchmark in BENCHMARKS.items() if benchmark.by_default]
    if unknown := [name for name in benchmark_names if name not in BENCHMARKS]:
        listing = "; ".join(f"{name}: {benchmark.what}" for name, benchmark in BENCHMARKS.items())
        raise typer.BadParameter(f"there is no benchmark {unknown[0]!r}. There are {listing}.", param_hint="NAME")
    folder = find_scripts()
    to = console()
    records = []
    out.parent.mkdir(parents=True, exist_ok=True)
    for name in benchmark_names:
        if lacking := [package for package in BENCHMARKS[name].needs if not is_installed(package)]:
            to.print(f"{name} is skipped: it needs {' and '.join(lacking)}. {install_command(*lacking)}")
            continue
        to.print(f"{name}: {BENCHMARKS[name].what}")
        records.append(run_script(folder / f"{name}.py", rounds))
        out.write_text(json.dumps({"phalanx": versions()["phalanx"], "benchmarks": records}, indent=1) + "\n")
    if not records:
        raise ValueError(f"no benchmark ran: install what is missing, or name others of {', '.join(BENCHMARKS)}.")
    to.print(results_table(records))
    for line in summary_lines(records):
        to.print(line, highlight=False)
    to.print(f"written: {out}", highlight=False, soft_wrap=True)


def find_scripts() -> Path:
    """Return the folder of the scripts, or raise with the way to get them."""
    for folder in PLACES:
        if (folder / "side_by_side.py").exists():
            return folder
    raise ValueError(
        "this installation has no benchmark scripts. A wheel carries them; in a clone of the repository they are in "
        "benchmarks/. Install a wheel (pip install phalanx), or run the command in an environment made from a clone."
    )


def run_script(script: Path, rounds: int | None) -> dict[str, Any]:
    """Run one script in a process of its own and return the record it writes."""
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, str(script), "--results", results]
        command += [] if rounds is None else ["--rounds", str(rounds)]
        # The scripts import the package that runs this command, wherever it was imported from.
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = subprocess.run(command, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": path})
        if process.returncode:
            raise RuntimeError(f"the benchmark {script.stem} ended with exit status {process.returncode}; see above.")
        return json.loads((Path(results) / f"{script.stem}.json").read_text())


def results_table(records: Iterable[dict[str, Any]]) -> Table:
    """Return a table with a line for each comparison; a ratio below 1 means that Phalanx takes less."""
    table = Table("benchmark", "what", "Phalanx", "against", "ratio", "interquartile range", "")
    for record in records:
        for row in record["rows"]:
            low, high = row["middle_half"]
            against = f"{row['theirs']}: {row['theirs_time']:.3g} {row['unit']}"
            table.add_row(
                record["name"],
                row["what"],
                f"{row['ours_time']:.3g} {row['unit']}",
                against,
                f"{row['ratio']:.2f}",
                f"{low:.2f} to {high:.2f}",
                judgement(row),
            )
    return table


def judgement(row: dict[str, Any]) -> str:
    """Return "win" or "loss" where the interquartile range is on one side of 1, and "even" elsewhere."""
    low, high = row["middle_half"]
    return "win" if high < 1 else "loss" if low > 1 else "even"


def summary_lines(records: list[dict[str, Any]]) -> list[str]:
    """Return the numbers of wins and losses, the machine with its versions, and the records of a busy machine."""
    judgements = [judgement(row) for record in records for row in record["rows"]]
    counts = (("win", "wins"), ("loss", "losses"), ("even", "even"))
    machine = records[0]["machine"]
    return [
        ", ".join(f"{judgements.count(one)} {many}" for one, many in counts),
        ", ".join(f"{name} {value}" for name, value in machine.items()),
        *(
            f"note: other processes kept {record['cores_taken_by_others']} cores busy during {record['name']}"
            for record in records
            if record["busy"]
        ),
    ]
