"""Kernels, guides, reducers, checks and figures by name: built-in ones, or functions in a user's file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import typer

from phalanx import reducers
from phalanx.cli.user_model import is_reference, load, naming_lines_of, split_reference
from phalanx.inputs.known_data import is_required
from phalanx.kernels.chees import chees
from phalanx.kernels.hmc import hmc
from phalanx.kernels.laps import laps
from phalanx.kernels.mams import mams
from phalanx.kernels.nuts import nuts
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.kernels.rwmh import rwmh
from phalanx.kernels.sghmc import sghmc
from phalanx.kernels.sgld import sgld
from phalanx.reducers.reducer import Reduce, Reducer
from phalanx.variational.guides import constructors as guides

KERNELS: dict[str, Callable[..., Kernel]] = {
    "nuts": nuts,
    "hmc": hmc,
    "rwmh": rwmh,
    "chees": chees,
    "mams": mams,
    "laps": laps,
    "sgld": sgld,
    "sghmc": sghmc,
}
"""Built-in kernels whose choices the options of the command cover."""

GUIDES: dict[str, Callable[..., Any]] = {
    name: getattr(guides, name)
    for name in ("mean_field", "full_rank", "low_rank", "structured", "flow", "laplace", "pathfinder")
}
"""Built-in guides."""


def kernel(name: str, **options: float | None) -> Kernel:
    """Return a kernel with the given options; raise for an option that it lacks or needs."""
    make = _function_named("kernel", name, KERNELS, "--kernel")
    values = {option: value for option, value in options.items() if value is not None}
    parameters = inspect.signature(make).parameters
    if unknown := [option for option in values if option not in parameters]:
        raise typer.BadParameter(f"the kernel {name} has no {unknown[0]}.", param_hint=_as_option(unknown[0]))
    if missing := [option for option in options if option not in values and is_required(parameters.get(option))]:
        raise typer.BadParameter(f"the kernel {name} needs a {missing[0]}.", param_hint=_as_option(missing[0]))
    return _check_kind("kernel", name, make(**values), Kernel, "phx.Kernel, such as phx.from_draw(draw) makes")


def guide(name: str) -> Any:
    """Return a guide that is made from the model; or the user's program."""
    path = _function_named("guide", name, GUIDES, "--guide")
    return path if is_reference(name) else path()


def reducers_named(names: Sequence[str] | None) -> dict[str, Reducer | Reduce]:
    """Return reducers by name."""
    built_in = {name: getattr(reducers, name) for name in reducers.__all__ if _needs_nothing(getattr(reducers, name))}
    kind_text = "reducer, such as phx.reducers.moments()"
    return {
        label: _check_kind(
            "reducer", name, _function_named("reducer", name, built_in, "--reducer")(), Reducer | Reduce, kind_text
        )
        for label, name in _references_by_name("reducer", names).items()
    }


def functions(what: str, references: Sequence[str] | None) -> dict[str, Callable[..., Any]]:
    """Return functions of the user's files by name."""
    return {
        name: _naming_its_lines(path, load(path, what)) for name, path in _references_by_name(what, references).items()
    }


def _function_named(what: str, name: str, built_in: Mapping[str, Callable[..., Any]], hint: str) -> Any:
    if is_reference(name):
        return _naming_its_lines(name, load(name, what))
    if name not in built_in:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(built_in)}, nor FILE.py:NAME.", param_hint=hint)
    return built_in[name]


def _check_kind(what: str, name: str, result: object, kind: Any, kind_text: str) -> Any:
    if not isinstance(result, kind):
        raise TypeError(f"{what} {name!r}: the function must return a {kind_text}; got {type(result).__name__}.")
    return result


def _naming_its_lines(reference: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the user's function with errors that name the line of its file."""
    path, _ = split_reference(reference)

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with naming_lines_of(path):
            return function(*args, **kwargs)

    return called


def _references_by_name(what: str, names: Sequence[str] | None) -> dict[str, str]:
    """Return references by the name of their function; raise if two functions have one name."""
    paths: dict[str, str] = {}
    for name in names or ():
        label = name.rpartition(":")[2]
        if label in paths:
            raise ValueError(f"{what} {name!r}: {paths[label]!r} has the name {label}, too; rename one.")
        paths[label] = name
    return paths


def _needs_nothing(make: Any) -> bool:
    return not (isinstance(make, type) or any(map(is_required, inspect.signature(make).parameters.values())))


def _as_option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
