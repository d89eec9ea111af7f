"""The arguments that inference functions share: one table of names and rules, each with a message that says what to do.

A rule sees one argument alone. What two arguments, the model or the mesh have to do with each other is checked where
they come together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from os import PathLike
from typing import Any

import numpy as np
from jax.sharding import Mesh

from phalanx.density.imputation import check_missing
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.mesh.random_numbers import check_seed
from phalanx.run.init_values import check_kind
from phalanx.run.until import Until
from phalanx.store.policy import SavePolicy

PRECISIONS = ("float32", "tensorfloat32", "bfloat16")
"""Precisions of matrix products."""

Rule = Callable[[str, Any], object]
"""Function of an argument's name and value that raises unless the value will do."""


def check_arguments(**arguments: Any) -> None:
    """Raise unless each argument obeys its rule; see `RULES`.

    Raises:
        TypeError, ValueError: the message names the argument, what was expected, and what came.
    """
    for name in sorted(arguments, key=list(RULES).index):  # a name without a rule is an error, not a skipped check
        RULES[name](name, arguments[name])


def check_whole(name: str, value: object, least: int) -> None:
    """Raise unless a size is a whole number of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number, at least {least}; got {value!r}.")


def _whole(least: int) -> Rule:
    return lambda name, value: check_whole(name, value, least)


def _optional(rule: Rule) -> Rule:
    return lambda name, value: None if value is None else rule(name, value)


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool | int | np.bool_) or value not in (False, True):
        raise TypeError(f"{name} must be True or False; got {value!r}.")


def _fraction(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < 1:
        raise ValueError(f"{name} must be a fraction of the particles between 0 and 1, such as 0.5; got {value!r}.")


def _precision(name: str, value: object) -> None:
    if value not in PRECISIONS:
        raise ValueError(f"{name} must be one of {', '.join(PRECISIONS)}; got {value!r}.")


def _names(name: str, value: object) -> None:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence | AbstractSet) or not all(isinstance(one, str) for one in names):
        raise TypeError(f"{name}: expected names of variables, such as ['mean'], [] for none, or None; got {value!r}.")


def _function_of_report(name: str, value: object) -> None:
    if not callable(value):
        raise TypeError(f"{name}: expected a function of a report, called after each block; got {value!r}.")


def _kernel(name: str, value: object) -> None:
    if not isinstance(value, Kernel):
        raise TypeError(
            f"{name}: expected a kernel such as phx.hmc() or phx.rwmh(), got {value!r}{_named_kernel(value)}. "
            f"Wrap a BlackJAX algorithm: phx.from_blackjax(lambda f: blackjax.mala(f, 0.1))."
        )


def _named_kernel(kernel: object) -> str:
    name = kernel.lower() if isinstance(kernel, str) else getattr(kernel, "__name__", "")
    if name in ("sgld", "sghmc"):
        return f"; give kernel=phx.{name}(step_size=..., batch_size=...)"
    return f"; give kernel=phx.{name}()" if name in ("nuts", "hmc", "rwmh", "chees", "mams", "laps") else ""


def _mesh(name: str, value: object) -> None:
    if not isinstance(value, Mesh):
        raise TypeError(
            f"{name} must be made by phx.make_mesh, such as phx.make_mesh(devices=jax.devices()[:1]); got {value!r}."
        )


def _until(name: str, value: object) -> None:
    if not isinstance(value, Until):
        raise TypeError(f"{name}: expected a condition such as phx.until(ess=400, r_hat=1.01), got {value!r}.")


def _tuning(name: str, value: object) -> None:
    if not hasattr(value, "state"):
        raise TypeError(f"{name}: expected a posterior, whose tuning to use; got {value!r}.")


def _folder(name: str, value: object) -> None:
    if not isinstance(value, str | PathLike):
        raise TypeError(f"{name}: expected a folder, such as 'out/run.zarr'; got {value!r}.")


RULES: dict[str, Rule] = {
    "seed": lambda _, value: check_seed(value),
    "num_chains": _whole(1),
    "num_warmup": _optional(_whole(0)),
    "num_samples": _whole(1),
    "thin": _whole(1),
    "num_steps": _whole(0),
    "num_particles": _whole(1),
    "num_moves": _optional(_whole(1)),
    "target_ess": _fraction,
    "persistent": _flag,
    "until": _optional(_until),
    "on_block": _optional(_function_of_report),
    "progress": _flag,
    "tuning": _optional(_tuning),
    "init": lambda _, value: check_kind(value),
    "checkpoint": lambda _, value: SavePolicy.of(value),
    "store": _optional(_folder),
    "save_warmup": _flag,
    "keep": _optional(_names),
    "missing": lambda _, value: check_missing(value),
    "matmul_precision": _precision,
    "kernel": _kernel,
    "mesh": _optional(_mesh),
}
"""Rules by argument, in the order in which they are checked."""
