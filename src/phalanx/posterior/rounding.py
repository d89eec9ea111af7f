"""Check of rounding: differences of the log density between draws, in float32 beside float64.

A float32 has seven digits. If a model subtracts large numbers, the log density that a chain follows is noise, and
the run looks as if the geometry were difficult. The model with its data is evaluated at a few of the last draws in both
precisions, on the host. Constant errors do no harm, so differences between draws are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import Literal

from phalanx.density.target import Target
from phalanx.diagnostics import Finding, Verdict, judged
from phalanx.errors.message_text import first_few
from phalanx.jaxprs.walking import all_equations, constants_within
from phalanx.mesh.compatibility.jax_internals import RARELY
from phalanx.mesh.processes import to_host
from phalanx.mesh.total import Total
from phalanx.programs.unconstrained import run_unconstrained, to_unconstrained

LARGEST_ERROR = 0.3
"""Error of a difference of log densities, in nats, from which on it changes which proposals are accepted."""

LARGE = 1000.0
"""Magnitude of a number from which on a good run is checked: without one, differences of float32s are right."""

MARKER = 1e20
"""Magnitude of constants that stand for infinity."""

DATA_BYTES = 64 * 2**20
"""Most bytes of data; more would take seconds."""

DRAWS = 16
"""Most draws at which the log density is evaluated."""

REMEDY = (
    'numbers of 64 bits: jax.config.update("jax_enable_x64", True) before the first array is made, and the run again'
)

SAME_REMEDY = "numbers of 64 bits first, as above: rounding alone can cause this"

CONSEQUENCES = frozenset(
    {
        "high R-hat",
        "divergences",
        "low E-BFMI",
        "low ESS",
        "full trees",
        "low acceptance",
        "no movement",
        "relocated chains",
    }
)
"""Findings that a rounded log density causes, whatever the geometry."""


def with_rounding(
    verdict: Verdict,
    target: Target | None,
    draws: Mapping[str, Any],
    stats: Mapping[str, Any],
    error: Callable[[], float | str],
) -> Verdict:
    """Return the verdict with a finding on rounding before all others, if the log density has lost its digits.

    Args:
        verdict: the verdict of all other checks.
        target: the model with its data; None if it is not known.
        draws: arrays `(chain, draw, ...)` by variable.
        stats: arrays `(chain, draw)` by statistic; empty for draws that are not of chains.
        error: returns `rounding_error` of the same arguments, which takes the time of two compilations.
    """
    wide = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    if target is None or not stats or wide or jax.process_count() > 1:
        return verdict
    if target.minibatch is not None or not _is_suspicious(verdict, target, draws, stats):
        return verdict
    largest = error()
    if isinstance(largest, str):
        unchecked = f"Rounding of the log density was not checked: {largest}."
        return replace(verdict, passed=(*verdict.passed, unchecked))
    if not largest > LARGEST_ERROR:
        return verdict
    problem = (
        f"The log density is rounded: in float32 its differences between draws are off by up to {largest:.2g}, beside "
        f"float64, and proposals are accepted by such differences."
    )
    others = [
        finding._replace(advice=SAME_REMEDY) if finding.topic in CONSEQUENCES else finding
        for finding in verdict.findings
    ]
    return judged([Finding("rounding", problem, REMEDY), *others], verdict.passed)


def _is_suspicious(verdict: Verdict, target: Target, draws: Mapping[str, Any], stats: Mapping[str, Any]) -> bool:
    """Return whether the model has large numbers anywhere, or the run is not good, for which rounding may be why."""
    if any(finding.grade == "not good" and finding.topic in CONSEQUENCES for finding in verdict.findings):
        return True
    arrays = [*draws.values(), *(stats[name] for name in stats if name == "log_density")]
    try:
        arrays.extend(target.arguments.arrays)
        if any(array.nbytes > DATA_BYTES or _is_large(to_host(array)) for array in arrays):
            return True
        return any(_is_large(np.asarray(number)) for number in _constants(target))
    except Exception:  # the program does not run on whole data
        return False


def _is_large(numbers: np.ndarray) -> bool:
    if not np.issubdtype(numbers.dtype, np.number):
        return False
    size = np.abs(numbers[np.isfinite(numbers)])
    return bool(np.any((size >= LARGE) & (size < MARKER)))


def _constants(target: Target) -> Iterator[Any]:
    """Yield the constants of the terms of the log density."""

    def terms(position: Mapping[str, Array], arrays: Sequence[Array]) -> Any:
        return run_unconstrained(target.program, position, target.layout.join(arrays)).terms()

    inputs = target.sites.on_one_device.layout.shapes(), target.arguments.whole_shapes()
    axes = [(axis, 1) for axis in target.sizes]
    program = jax.make_jaxpr(lambda *inputs: list(terms(*inputs).values()), axis_env=axes)(*inputs)
    yield from constants_within(program)
    for equation in all_equations(program):
        yield from (atom.val for atom in equation.invars if isinstance(atom, Literal))


def rounding_error(target: Target, draws: Mapping[str, Any]) -> float | str:
    """Return the largest error of a difference of log densities between draws, or why it is not known."""
    latents = [latent.name for latent in target.sites.latents]
    if missing := [name for name in latents if name not in draws]:
        return f"the draws of {first_few(missing)} are not kept"
    if sum(array.nbytes for array in target.arguments.arrays) > DATA_BYTES:
        return f"the data have more than {DATA_BYTES // 2**20} MiB"
    values = {name: _choose_draws(np.asarray(draws[name])) for name in latents}
    shardings = target.arguments.shardings
    whole = (s.trim(a) for a, s in zip(target.arguments.arrays, shardings, strict=True))
    arrays = [np.asarray(to_host(array)) for array in whole]
    host = jax.local_devices(backend="cpu")[0]
    try:
        with jax.default_device(host), jax.default_matmul_precision("float32"):
            with jax.enable_x64(True):
                position, exact = _map(target, _at_values(target), _wide(values), _wide(arrays))
            rounded = _map(target, _log_density(target), position, arrays)
    except Exception as error:
        return f"the model does not run on the host: {(str(error).splitlines() or [repr(error)])[0][:200]}"
    errors = sum(Total(*map(np.asarray, total)).in_double() for total in rounded) - np.asarray(exact)
    errors = errors[np.isfinite(errors)]
    return float(np.ptp(errors)) if errors.size > 1 else 0.0


def _choose_draws(draws: np.ndarray) -> np.ndarray:
    """Return a few draws of the last half of several chains, `(draw, ...)`."""
    chains, length = draws.shape[:2]
    rows = np.unique(np.linspace(0, chains - 1, min(chains, DRAWS // 2)).astype(int))
    columns = np.unique(np.linspace(length // 2, length - 1, DRAWS // len(rows)).astype(int))
    return draws[np.ix_(rows, columns)].reshape(-1, *draws.shape[2:])


def _wide(tree: Any) -> Any:
    """Return the tree with floats of 64 bits."""
    wide = lambda leaf: leaf.astype(np.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf  # noqa: E731
    return jax.tree.map(wide, tree)


def _map(target: Target, f: Callable[..., Any], draws: Any, arrays: Any) -> Any:
    """Return `f(draw, arrays)` of all draws, compiled fast rather than to be fast, on the host."""
    program = jax.jit(lambda draws, arrays: lax.map(lambda draw: target.alone(lambda: f(draw, arrays)), draws))
    compiled = program.lower(draws, arrays).compile(RARELY)
    return jax.tree.map(np.asarray, compiled(draws, arrays))


def _log_density(target: Target) -> Callable[..., list[tuple[Array, Array]]]:
    """Return the log density as a function of position and data, by variable, each in two floats."""

    def terms(position: Mapping[str, Array], arrays: Sequence[Array]) -> list[tuple[Array, Array]]:
        run = run_unconstrained(target.program, position, target.layout.join(arrays))
        totals = [*run.densities(), *(Total.of(jnp.sum(log_det)) for log_det in run.log_dets.values())]
        return [(total.coarse, total.fine) for total in totals]

    return terms


def _at_values(target: Target) -> Callable[..., tuple[dict[str, Array], Array]]:
    """Return the position in float32 of a draw, and the log density there, as a function of the draw and the data."""

    def at(values: Mapping[str, Array], arrays: Sequence[Array]) -> tuple[dict[str, Array], Array]:
        position = to_unconstrained(target.program, values, target.layout.join(arrays))
        position = {name: array.astype(jnp.float32) for name, array in position.items()}
        terms = _log_density(target)({name: array.astype(jnp.float64) for name, array in position.items()}, arrays)
        return position, sum((coarse + fine for coarse, fine in terms), jnp.zeros(()))

    return at
