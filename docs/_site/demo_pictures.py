"""Maker of the pictures and results of the tutorials: `python docs/_site/demo_pictures.py [NAME ...]` runs the demos.

Demos that need other data, or many minutes of two cores, run only if they are named, with the data's folder in
PHALANX_DATA; trainings on MNIST are drawn from the committed results.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pictures import save_small

FOLDER = Path(__file__).parents[1] / "tutorials"
RESULTS = Path(__file__).parents[2] / "benchmarks/results"
DEMOS: dict[str, tuple[str, list[str]]] = {
    "digits": ("", ["accuracy", "weights", "reliability"]),
    "chains": ("", ["draws"]),
    "mixture": ("", ["histogram", "time_against_samples", "memory_against_samples"]),
    "movielens": ("", ["recommendations", "reliability"]),
}
"""Options, and the pictures that the tutorial shows."""

LONG: dict[str, tuple[str, list[str]]] = {
    "covertype": ("--chains 4 --warmup 300 --draws 300", ["coefficients", "reliability"]),
    "mnist": ("--chains 2 --warmup 40 --draws 40", ["accuracy", "weights", "reliability"]),
}
"""Those that run only if they are named."""

ROWS = 8
"""Rows of a summary that are stored."""


def run(name: str) -> None:
    """Run a demo in a folder that is removed, and store what the tutorial shows."""
    command = f"phalanx demo {name} {(DEMOS | LONG)[name][0]}".strip()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"COLUMNS": "110"}
        if data := os.environ.get("PHALANX_DATA"):  # the printed lines name no folder of this machine
            (Path(folder) / "data").symlink_to(data)
            environment["PHALANX_DATA"] = "data"
        arguments = [sys.executable, "-m", "phalanx", *command.split()[1:], "--out", f"out/{name}"]
        done = subprocess.run(arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        store(name, command, done.stdout, Path(folder) / f"out/{name}")


def store(name: str, command: str, printed: str, folder: Path) -> None:
    """Store a demo's command, its output without progress and most rows of the summary, and its pictures."""
    for picture in (DEMOS | LONG)[name][1]:
        save_small(folder / f"{picture}.png", FOLDER / f"pictures/{name}-{picture}.png")
    lines, rows = [], 0
    for line in printed.splitlines():
        if line.endswith("s left") or line.startswith("written:"):
            continue
        rows = rows + 1 if re.match(r"\S+( +[-+.\de]+){9}$", line) else 0
        if rows <= ROWS:
            lines.append(line.rstrip())
        elif rows == ROWS + 1:
            lines.append("...")
    (FOLDER / "results").mkdir(exist_ok=True)
    (FOLDER / f"results/{name}.log").write_text("\n".join([f"$ {command}", *lines]) + "\n")
    print(printed, flush=True)


def ensemble_training(result: dict[str, Any]) -> Any:
    """Draw accuracies by epoch of the committed training on MNIST."""
    from phalanx.demos.ensemble import curves

    return curves(result["epochs"])


def transformer_training(result: dict[str, Any]) -> Any:
    """Draw bits per dimension by seconds of the committed training on MNIST."""
    return _bits(result, "bits_per_dimension_test")


def vae_training(result: dict[str, Any]) -> Any:
    """Draw bits per dimension by seconds of the committed training on MNIST."""
    return _bits(result, "elbo_bits_per_dimension")


def _bits(result: dict[str, Any], of_test: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.4), dpi=110, layout="constrained")
    axes, looks = figure.subplots(), result["looks"]
    for name in ("bits", "held_out_bits"):
        axes.plot(
            [look["seconds"] / 60 for look in looks], [look[name] for look in looks], label=name.replace("_", " ")
        )
    axes.axhline(result[of_test], color="0.6", linestyle="--", label="test images")
    axes.set(xlabel="minutes", ylabel="bits per dimension")
    axes.legend(frameon=False)
    return figure


TRAININGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "ensemble": ensemble_training,
    "vae": vae_training,
    "image_transformer": transformer_training,
}


def trainings() -> None:
    """Draw the committed trainings on MNIST."""
    for name, draw in TRAININGS.items():
        with tempfile.TemporaryDirectory() as folder:
            drawn = Path(folder) / "training.png"
            draw(json.loads((RESULTS / f"{name}_demo.json").read_text())).savefig(drawn)
            save_small(drawn, FOLDER / f"pictures/{name.replace('_', '-')}-mnist.png")


if __name__ == "__main__":
    trainings()
    for name in sys.argv[1:] or DEMOS:
        run(name)
