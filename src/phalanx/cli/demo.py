"""Command `phalanx demo NAME`, which runs a headline workload."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli import options
from phalanx.cli.interruption import Interrupted, explain_interrupt
from phalanx.demos.options import DemoOptions
from phalanx.extras import install_command, is_installed
from phalanx.posterior.posterior import Posterior


class Demo(StrEnum):
    """Names of the demos."""

    digits = "digits"
    mnist = "mnist"
    chains = "chains"
    covertype = "covertype"
    mixture = "mixture"
    movielens = "movielens"
    ensemble = "ensemble"
    vae = "vae"
    image_transformer = "image-transformer"


_REPORT = ("matplotlib", "jinja2")
_NEEDS = {
    Demo.digits: ("sklearn",),
    Demo.movielens: ("sklearn",),
    Demo.ensemble: ("flax", "optax"),
    Demo.vae: ("flax", "optax"),
    Demo.image_transformer: ("flax", "optax"),
}
"""Optional packages that every demo needs, and those of each: they are asked for before it runs, all together."""

_ONLY = {
    "samples": (Demo.mixture,),
    "members": (Demo.ensemble,),
    "binary": (Demo.vae,),
    "epochs": (Demo.ensemble, Demo.vae, Demo.image_transformer),
}
"""Options that only some demos have."""

_OF_CHAINS = ("chains", "warmup", "draws")
_NEVER = {Demo.ensemble: (*_OF_CHAINS, "data_shards"), Demo.vae: _OF_CHAINS, Demo.image_transformer: _OF_CHAINS}
"""Options that a demo does not have."""

_SIZES = {Demo.ensemble: "--members and --epochs", Demo.vae: "--epochs", Demo.image_transformer: "--epochs"}


def demo(
    name: Annotated[Demo, typer.Argument(help="The demo to run.")],
    data: Annotated[Path | None, typer.Option(help="Folder of the data files.")] = None,
    chains: options.Chains = None,
    warmup: options.Warmup = None,
    draws: Annotated[int | None, typer.Option("--draws", "--num-samples", help="Draws per chain.")] = None,
    samples: Annotated[float | None, typer.Option(help="Draws over all chains, such as 1e9; mixture only.")] = None,
    members: Annotated[int | None, typer.Option(help="Number of networks; ensemble only.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of training; demos of networks only.")] = None,
    binary: Annotated[
        bool, typer.Option("--binary", help="Sample black or white pixels in every step; vae only.")
    ] = False,
    devices: options.Devices = None,
    data_shards: options.DataShards = None,
    seed: options.Seed = 0,
    out: options.Out = None,
    precision: options.Precision = options.MatrixPrecision.float32,
) -> None:
    """Run a headline workload: print the model, progress, summary and results; write a report and pictures."""
    sizes = {"samples": samples, "members": members, "epochs": epochs, "chains": chains, "warmup": warmup}
    _check(name, **sizes, draws=draws, data_shards=data_shards, binary=binary or None)
    if lacking := [package for package in (*_REPORT, *_NEEDS.get(name, ())) if not is_installed(package)]:
        raise ImportError(f"the demo {name.value} needs {' and '.join(lacking)}: {install_command(*lacking)}")
    options.start_devices(devices)
    folder = out or Path("out") / name.value
    whole = None if samples is None else int(samples)
    demo_options = DemoOptions(
        data, chains, warmup, draws, whole, members, epochs, data_shards, seed, precision.value, folder, binary
    )
    with explain_interrupt(f"the demo did not finish; the files that it wrote are in {folder}."):
        run = import_module(f"phalanx.demos.{name.name}").main(demo_options)
    if isinstance(run, Posterior) and run.record.interrupted:
        raise Interrupted(f"the results so far are in {folder}.")


def _check(name: Demo, **values: object) -> None:
    """Raise if the user gave an option that the demo does not have."""
    for option, value in values.items():
        only = _ONLY.get(option, (name,))
        if value is not None and (name not in only or option in _NEVER.get(name, ())):
            of_others = f", which is for {' and '.join(demo.value for demo in only)}"
            why = of_others if name not in only else f": it trains networks; set {_SIZES[name]} instead"
            hint = f"--{option.replace('_', '-')}"
            raise typer.BadParameter(f"the demo {name.value} does not have this option{why}.", param_hint=hint)
