"""Kernels, reducers, checks and figures by name: ours, or a function in a file of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import typer

from phalanx import reducers
from phalanx.cli.user_model import is_place, load, naming_lines_of, split_place
from phalanx.kernels.chees import chees
from phalanx.kernels.hmc import hmc
from phalanx.kernels.mams import mams
from phalanx.kernels.nuts import nuts
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.kernels.rwmh import rwmh
from phalanx.kernels.sghmc import sghmc
from phalanx.kernels.sgld import sgld
from phalanx.reducers.reducer import Reduce, Reducer

KERNELS: dict[str, Callable[..., Any]] = {
    "nuts": nuts, "hmc": hmc, "rwmh": rwmh, "chees": chees, "mams": mams, "sgld": sgld, "sghmc": sghmc,
}  # fmt: skip
"""Ours that the options of the command are choices enough for."""


def kernel(name: str, **given: Any) -> Kernel:
    """A kernel with the choices made; those that it does not have are refused."""
    make = _found("kernel", name, KERNELS, "--kernel")
    chosen = {option: value for option, value in given.items() if value is not None}
    parameters = inspect.signature(make).parameters
    if unknown := [option for option in chosen if option not in parameters]:
        raise typer.BadParameter(f"the kernel {name} has no {unknown[0]}.", param_hint=_as_option(unknown[0]))
    if left := [option for option in given if option not in chosen and _is_needed(parameters.get(option))]:
        raise typer.BadParameter(f"the kernel {name} needs a {left[0]}.", param_hint=_as_option(left[0]))
    return _made("kernel", name, make(**chosen), Kernel, "phx.Kernel, such as phx.from_draw(draw) makes")


def reducers_named(names: Sequence[str] | None) -> dict[str, Reducer | Reduce]:
    """Reducers by what they are called."""
    ours = {name: getattr(reducers, name) for name in reducers.__all__ if _needs_nothing(getattr(reducers, name))}
    expected = "reducer, such as phx.reducers.moments()"
    return {
        called: _made("reducer", name, _found("reducer", name, ours, "--reducer")(), Reducer | Reduce, expected)
        for called, name in _called("reducer", names).items()
    }


def functions(what: str, places: Sequence[str] | None) -> dict[str, Callable[..., Any]]:
    """Functions of the user's by name."""
    return {called: _speaking_of_its_lines(place, load(place, what)) for called, place in _called(what, places).items()}


def _found(what: str, name: str, ours: Mapping[str, Callable[..., Any]], hint: str) -> Any:
    if is_place(name):
        return _speaking_of_its_lines(name, load(name, what))
    if name not in ours:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(ours)}, nor FILE.py:NAME.", param_hint=hint)
    return ours[name]


def _made(what: str, name: str, made: Any, kind: Any, expected: str) -> Any:
    if not isinstance(made, kind):
        raise TypeError(f"{what} {name!r}: the function must return a {expected}; got {type(made).__name__}.")
    return made


def _speaking_of_its_lines(place: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The user's function, whose errors name the line of its file."""
    path, _ = split_place(place)

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with naming_lines_of(path):
            return function(*args, **kwargs)

    return called


def _called(what: str, names: Sequence[str] | None) -> dict[str, str]:
    """By what they are called, the function's name of `FILE.py:NAME`; each is called otherwise."""
    found: dict[str, str] = {}
    for name in names or ():
        called = name.rpartition(":")[2]
        if called in found:
            raise ValueError(f"{what} {name!r}: there is one that is called {called} already, {found[called]!r}.")
        found[called] = name
    return found


def _needs_nothing(make: Any) -> bool:
    return not (isinstance(make, type) or any(map(_is_needed, inspect.signature(make).parameters.values())))


def _is_needed(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and parameter.default is parameter.empty


def _as_option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
