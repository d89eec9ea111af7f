"""Draws that lie in several processes, and methods of a posterior that these processes must call together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from phalanx.mesh.agreement import check_same
from phalanx.mesh.chains import HeldChains
from phalanx.mesh.processes import is_first, made_by_first
from phalanx.posterior.continuation import FromFile
from phalanx.posterior.file import WARMUP_PARTS
from phalanx.store.lazy_array import LazyArray
from phalanx.store.save_path import is_netcdf, write_netcdf

if TYPE_CHECKING:
    from jaxtyping import Shaped

Arrays = Mapping[str, np.ndarray]
"""Arrays `(chain, draw, ...)` by name."""


class GatheredArray(LazyArray):
    """Draws of one variable `(chain, draw, ...)`; all processes must use them at the same places.

    Args:
        own: the draws of the chains that this process holds.
        held_chains: the chains that each process holds.
    """

    def __init__(self, held_values: Shaped[np.ndarray, "held draws *shape"], held_chains: HeldChains):
        super().__init__((held_chains.num_chains, *held_values.shape[1:]), held_values.dtype)
        self._own = held_values
        self._held = held_chains

    def _read(self, index: tuple[slice, ...]) -> np.ndarray:
        chains, *others = index
        return self._held.gathered(self._own[(slice(None), *others)], chains)


class _Gathered(Mapping[str, np.ndarray]):
    """Arrays by name, each gathered when it is taken."""

    def __init__(self, held_arrays: Arrays, held_chains: HeldChains):
        self._own = held_arrays
        self._held = held_chains

    def __getitem__(self, name: str) -> np.ndarray:
        return self._held.gathered(self._own[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


def of_all_chains(draws: Arrays, stats: Arrays, held_chains: HeldChains) -> tuple[Arrays, Arrays]:
    """Return draws and statistics of all chains, given those that this process holds; each is gathered when taken."""
    return (draws, stats) if held_chains.is_whole else (_Gathered(draws, held_chains), _Gathered(stats, held_chains))


Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class ProcessDraws:
    """Place of the draws of one process among those of all.

    Attributes:
        held: the chains that each process holds.
        divergences: divergent draws of all chains.
    """

    held: HeldChains
    divergences: int

    @classmethod
    def of(cls, held_chains: HeldChains, stats: Arrays) -> ProcessDraws | None:
        """Return the place of these statistics; None if they are of all chains. All processes must call it together."""
        if held_chains.is_whole:
            return None
        divergences = int(np.sum(stats["diverging"][held_chains.owned])) if "diverging" in stats else 0
        return cls(held_chains, int(held_chains.total(np.array(divergences))))

    def gathered(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Return arrays of all chains."""
        return {name: self.held.gathered(values) for name, values in arrays.items()}

    def on_use(self, arrays: Arrays) -> dict[str, Any]:
        """Return arrays of all chains that are gathered when they are used."""
        return {name: GatheredArray(values, self.held) for name, values in arrays.items()}

    def joined(self, posterior: Any, of: Callable[[Arrays], Any]) -> Any:
        """Return a posterior of all chains; `of`, which maps its arrays, is `gathered`, `on_use` or `at_first`."""
        parts = {name: of(getattr(posterior, name)) for name in ("draws", "stats", *WARMUP_PARTS)}
        return replace(posterior, **parts, held_draws=None)

    def at_first(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Return arrays of all chains in the first process, and none in the others."""
        arrays_of_all = ((name, self.held.gathered(values)) for name, values in arrays.items())
        return {name: values for name, values in arrays_of_all if is_first()}


def on_all_chains(method: Method) -> Method:
    """Have a method of a posterior use the draws of all chains, which all processes gather.

    Without draws in other processes it is the method as it is.
    """

    @functools.wraps(method)
    def together(self: Any, *arguments: Any, **options: Any) -> Any:
        if self.held_draws is None:
            return method(self, *arguments, **options)
        check_same(f"posterior.{method.__name__}", lambda: _in_words(arguments, options))
        return method(self.of_all_chains, *arguments, **options)

    return cast("Method", together)


def _in_words(arguments: tuple[Any, ...], options: dict[str, Any]) -> dict[str, str]:
    """Return the arguments that are words and numbers, which decide how much is gathered."""
    named_arguments = {f"argument {number}": value for number, value in enumerate(arguments)} | options
    plain = (str, int, float, type(None))
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in named_arguments.items()}
    return {
        name: repr(value)
        for name, value in settings.items()
        if isinstance(value, plain) or (isinstance(value, tuple) and all(isinstance(one, plain) for one in value))
    }


def save_together(posterior: Any, file: Path) -> Path:
    """Have the first process write a posterior to a file; see `Posterior.save`."""
    check_same("posterior.save", lambda: {"path": str(file)})
    if is_netcdf(file):
        container = posterior.of_all_chains.to_arviz()
        return made_by_first(lambda: write_netcdf(file, lambda: container), file)
    continuation = posterior.continuation
    if continuation is not None:
        continuation = FromFile(continuation.saved(), continuation.contents())
    whole = replace(_at_first(posterior), continuation=continuation)
    return made_by_first(lambda: whole.save(file), file)


def report_together(posterior: Any, path: Path, beside: Any, options: dict[str, Any]) -> Path:
    """Have the first process write a page; see `Posterior.report`."""
    check_same("posterior.report", lambda: {"path": str(path)})
    whole = _at_first(posterior)
    other = None if beside is None else _at_first(beside)
    return made_by_first(lambda: whole.report(path, beside=other, **options), path)


def _at_first(posterior: Any) -> Any:
    """Return a posterior with all draws in the first process, and without draws in the others."""
    return (
        posterior
        if posterior.held_draws is None
        else posterior.held_draws.joined(posterior, posterior.held_draws.at_first)
    )
