"""Compiled programs of fits, found again by what they compute.

A program is traced in every call and compiled only where no trace equal to it has been: models, guides, objectives and
optimisers are functions that may read anything, and the trace shows what they have read. Data, seeds, rates and what is
learned are arguments, so that other values of them make the same trace.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import jax

from phalanx.programs.canonical import form_of
from phalanx.run.compilation import use_cache
from phalanx.run.kept import settings

KEEP = 32

RARELY: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}
"""What is called a few times is not worth optimising."""

_kept: OrderedDict[Hashable, Any] = OrderedDict()


class Compiler:
    """Compiles, and counts how often and how long.

    Attributes:
        count: programs compiled.
        seconds: spent on tracing and compiling.
    """

    def __init__(self, matmul_precision: str = "float32") -> None:
        self.count, self.seconds, self._precision = 0, 0.0, matmul_precision

    def __call__(
        self, f: Callable[..., Any], *arguments: Any, out_shardings: Any = None, rarely: bool = False
    ) -> Callable[..., Any]:
        """`f`, compiled for arguments of these shapes that lie where these do; quickly, if it is `rarely` called."""
        began = time.perf_counter()
        try:
            with jax.default_matmul_precision(self._precision):
                laid_out = {} if out_shardings is None else {"out_shardings": out_shardings}
                traced = jax.jit(f, **laid_out).trace(*arguments)
                key = _key_of(traced, arguments, out_shardings)
                return _look_up(key) or self._compile(key, traced, RARELY if rarely else {})
        finally:
            self.seconds += time.perf_counter() - began

    def _compile(self, key: Hashable | None, traced: Any, options: dict[str, str | bool]) -> Any:
        use_cache()
        compiled = traced.lower().compile(options)
        self.count += 1
        if key is not None:
            _kept[key] = compiled
            while len(_kept) > KEEP:
                _kept.popitem(last=False)
        return compiled


def _look_up(key: Hashable | None) -> Any:
    if key is None or key not in _kept:
        return None
    _kept.move_to_end(key)
    return _kept[key]


def _key_of(traced: Any, arguments: Any, out_shardings: Any) -> Hashable | None:
    """What tells a compiled program from others; None where it cannot be told."""
    form = form_of(traced.jaxpr)
    if form is None:
        return None
    where = tuple(getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arguments))
    made = jax.tree.flatten(out_shardings)
    return (
        form,
        jax.tree.structure(arguments),
        where,
        jax.tree.structure(traced.out_info),
        *map(_hashed, made),
        settings(),
    )


def _hashed(value: Any) -> Hashable:
    return tuple(value) if isinstance(value, list) else value
