"""Checks of the options of kernels, and their conversion to hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import jax
import numpy as np

from phalanx.adaptation.metric import KINDS
from phalanx.adaptation.tuner import Tuner


def hyperparameter(value: float | int) -> np.ndarray:
    """Return a number as an argument of compiled code, in NumPy: a kernel may be made before JAX starts."""
    return np.asarray(value, np.int32 if isinstance(value, int) else jax.dtypes.canonicalize_dtype(float))


def without_none(*tuners: Tuner | None) -> tuple[Tuner, ...]:
    """Return the tuners that are not None, as a tuple."""
    return tuple(tuner for tuner in tuners if tuner is not None)


def step_size_of(
    kernel: str, step_size: float | None, initial_step_size: float, target_acceptance: float
) -> np.ndarray:
    """Return the step size to begin with: the one given, which is kept, or the one with which tuning starts."""
    if not is_number(target_acceptance) or not 0 < target_acceptance < 1:
        raise ValueError(f"{kernel}: target_acceptance must lie between 0 and 1, got {target_acceptance!r}.")
    positive(kernel, "initial_step_size", initial_step_size)
    if step_size is not None:
        positive(kernel, "step_size", step_size)
    return hyperparameter(float(initial_step_size if step_size is None else step_size))


def positive(kernel: str, name: str, value: object) -> None:
    """Raise unless a hyperparameter is a positive number."""
    if not is_number(value) or not 0 < value < float("inf"):
        raise ValueError(f"{kernel}: {name} must be a positive number, got {value!r}.")


def check_metric(kernel: str, metric: object, kinds: Sequence[str] = KINDS) -> None:
    """Raise unless `metric` is one of the known kinds."""
    if metric not in kinds:
        raise ValueError(f"{kernel}: metric must be one of {', '.join(map(repr, kinds))}; got {metric!r}.")


def check_centring(kernel: str, centring: object) -> str | tuple[str, ...] | None:
    """Return the variables to be partially centred: "auto", a tuple of names, or None; raise otherwise."""
    if centring is None or centring == "auto":
        return centring  # pyright: ignore[reportReturnType]
    names = (centring,) if isinstance(centring, str) else centring
    if isinstance(names, Sequence) and names and all(isinstance(name, str) for name in names):
        return tuple(names)
    raise ValueError(
        f'{kernel}: centring must be "auto", names of variables such as ["theta"], or None; got {centring!r}.'
    )


def check_integer(kernel: str, name: str, value: object, least: int = 1) -> int:
    """Return a hyperparameter as a whole number; raise unless it is one of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{kernel}: {name} must be a whole number, at least {least}; got {value!r}.")
    return int(value)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number, and not a flag."""
    return isinstance(value, int | float) and not isinstance(value, bool)
