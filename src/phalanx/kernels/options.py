"""What kernels' constructors check of their options, and how options become hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def hyperparameter(value: float | int) -> Any:
    """A number as compiled code takes it: one of NumPy's, since a kernel may be made before JAX starts."""
    return np.asarray(value, np.int32 if isinstance(value, int) else jax.dtypes.canonicalize_dtype(float))


def step_size_of(kernel: str, step_size: Any, initial_step_size: Any) -> Any:
    """The step size to begin with: the one given, which is kept, or the one where tuning starts."""
    positive(kernel, "initial_step_size", initial_step_size)
    if step_size is not None:
        positive(kernel, "step_size", step_size)
    return hyperparameter(float(initial_step_size if step_size is None else step_size))


def positive(kernel: str, name: str, value: Any) -> None:
    """Refuse a hyperparameter that is not a positive number."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ValueError(f"{kernel}: {name} must be a positive number, got {value!r}.")


def fraction(kernel: str, name: str, value: Any) -> None:
    """Refuse a hyperparameter that is not a number between 0 and 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        raise ValueError(f"{kernel}: {name} must lie between 0 and 1, got {value!r}.")


def one_of(kernel: str, name: str, value: Any, known: Sequence[str]) -> None:
    """Refuse a hyperparameter that is none of a few words."""
    if value not in known:
        raise ValueError(f"{kernel}: {name} must be one of {', '.join(map(repr, known))}; got {value!r}.")


def whole(kernel: str, name: str, value: Any, least: int = 1) -> int:
    """A hyperparameter as a whole number; refuse one that is none of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{kernel}: {name} must be a whole number, at least {least}; got {value!r}.")
    return int(value)
