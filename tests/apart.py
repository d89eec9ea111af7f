"""Arguments of `phx.mcmc`, parted into those of `phx.compile` and those of `sampler.run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.run.checks import RUN_ARGUMENTS


def compiled_in(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `phx.compile` among those of `phx.mcmc`."""
    return {name: value for name, value in arguments.items() if name not in RUN_ARGUMENTS}


def of_a_run(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `sampler.run` among those of `phx.mcmc`."""
    return {name: value for name, value in arguments.items() if name in RUN_ARGUMENTS}
