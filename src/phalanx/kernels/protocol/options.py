"""What kernels' constructors check of their options, and how options become hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from phalanx.adaptation.metric import KINDS
from phalanx.adaptation.tuner import Tuner


def hyperparameter(value: float | int) -> Any:
    """A number as compiled code takes it: one of NumPy's, since a kernel may be made before JAX starts."""
    return np.asarray(value, np.int32 if isinstance(value, int) else jax.dtypes.canonicalize_dtype(float))


def listed(*tuners: Tuner | None) -> tuple[Tuner, ...]:
    """Tuners in their order, without those of what the user has given."""
    return tuple(tuner for tuner in tuners if tuner is not None)


def step_size_of(kernel: str, step_size: Any, initial_step_size: Any, target_acceptance: Any) -> Any:
    """The step size to begin with: the one given, which is kept, or the one where tuning starts."""
    if not is_number(target_acceptance) or not 0 < target_acceptance < 1:
        raise ValueError(f"{kernel}: target_acceptance must lie between 0 and 1, got {target_acceptance!r}.")
    positive(kernel, "initial_step_size", initial_step_size)
    if step_size is not None:
        positive(kernel, "step_size", step_size)
    return hyperparameter(float(initial_step_size if step_size is None else step_size))


def positive(kernel: str, name: str, value: Any) -> None:
    """Refuse a hyperparameter that is not a positive number."""
    if not is_number(value) or not 0 < value < float("inf"):
        raise ValueError(f"{kernel}: {name} must be a positive number, got {value!r}.")


def check_metric(kernel: str, metric: Any, known: Sequence[str] = KINDS) -> None:
    """Refuse a kind of metric that is none of a few words."""
    if metric not in known:
        raise ValueError(f"{kernel}: metric must be one of {', '.join(map(repr, known))}; got {metric!r}.")


def whole(kernel: str, name: str, value: Any, least: int = 1) -> int:
    """A hyperparameter as a whole number; refuse one that is none of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{kernel}: {name} must be a whole number, at least {least}; got {value!r}.")
    return int(value)


def is_number(value: Any) -> bool:
    """Return whether a value is a number, and not a flag."""
    return isinstance(value, int | float) and not isinstance(value, bool)
