"""Record of a sampler: model, data, kernel, devices and versions in words for a report."""

from __future__ import annotations

import inspect
import math
import platform
import textwrap
from collections.abc import Callable, Mapping, Set
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from phalanx.density.naming import Naming
from phalanx.density.target import Target
from phalanx.diagnostics import Finding
from phalanx.diagnostics.elements import Names, element_names
from phalanx.inputs.arguments import ADDED, Arguments
from phalanx.inputs.axis_names import AxisNames
from phalanx.inputs.dataframe_input import Labels, Levels
from phalanx.inputs.held_contents import held_contents
from phalanx.inputs.known_data import Names as NamesOfData
from phalanx.inputs.known_data import names_of, scalars_of
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.mesh.compatibility.compiler_settings import compiler_settings
from phalanx.mesh.row_sharding import RowSharding
from phalanx.posterior.communication import communication_of
from phalanx.posterior.record import RunRecord

LESS_BIAS = (
    "half the step size, and larger batches, until what you report no longer moves; or phx.nuts(), whose draws have no "
    "such bias"
)
"""Advice for draws of an approximate kernel."""

MOST_LABELS = 100
"""Maximal number of names of columns or levels in a record."""


def describe(target: Target, kernel: Kernel, num_chains: int, matmul_precision: str) -> RunRecord:
    """Return the record of a sampler, without the length and the seed of a run."""
    return RunRecord(
        model=getattr(target.program, "__name__", type(target.program).__name__),
        source=source_of(target.program),
        kernel=kernel.name,
        num_chains=num_chains,
        num_warmup=0,
        num_samples=0,
        seed=0,
        mesh={axis: int(size) for axis, size in target.mesh.shape.items()},
        devices=[str(device) for device in target.mesh.devices.flat],
        data={
            **data_words(target.arguments),
            **dict.fromkeys(
                target.arguments.constants, "compiled in: a size or a branch of the model depends on its values"
            ),
        },
        latents={
            v.name: f"{v.support} {(s.rows, *v.shape[1:]) if s.axes else v.shape}{where_words(s)}"
            for v, s in ((latent, latent.sharding) for latent in target.sites.latents)
        },
        versions=versions(),
        compiler=compiler_settings(),
        matmul_precision=matmul_precision,
        prior_only=not target.sites.of_likelihood,
        communication=communication_of(target),
        findings=() if kernel.bias is None else (Finding("approximate kernel", kernel.bias, LESS_BIAS),),
    )


def names_in_record(naming: Naming, arguments: Arguments, names: NamesOfData | None = None) -> dict[str, Any]:
    """Return the fields of a record that name axes, entries, levels, columns and observed variables, and hold scalars.

    Args:
        naming: names of the axes of the model's variables.
        arguments: the data.
        names: levels and columns in the order by which data are numbered; None for those of `arguments`.

    Raises:
        ValueError: when coordinates have another length than their dimension, or two rows of a table one name.
    """
    found_names = naming.axes_of_data(arguments)
    axes = naming.names(arguments, found_names)
    shapes = {name: naming.variables[name] for name in naming.rows}
    labels = distinct_rows(shapes, axes, frozenset(naming.given.coords))
    if names is None:
        names = names_of(arguments, {name: [axis.labels for axis in of_axes] for name, of_axes in found_names.items()})
    return {
        "labels": labels,
        "dims": axes.dims,
        "coords": axes.coords,
        "names": names,
        "scalars": scalars_of(arguments),
        "observed": naming.observed,
    }


def call_words(program: Callable[..., Any], arguments: Arguments, **others: Any) -> dict[str, str]:
    """Return what processes that sample together must share before they trace: words, and checksums."""
    return {
        "model": getattr(program, "__name__", type(program).__name__),
        "the text of the model": source_of(program),
        **{f"data {name!r}": text for name, text in data_words(arguments).items()},
        **held_contents(arguments),
        **{name: str(value) for name, value in others.items()},
        **{f"the release of {name}": release for name, release in versions().items()},
    }


def data_words(arguments: Arguments) -> dict[str, str]:
    """Return each array of the data in words: type, shape, sharding, and the names of its levels or columns."""
    arguments_and_labels = zip(
        arguments.names, arguments.whole_shapes(), arguments.shardings, arguments.labels, strict=True
    )
    return {
        name: f"{s.dtype} {s.shape}{where_words(sharding)}{_labels(of_axes)}"
        for name, s, sharding, of_axes in arguments_and_labels
        if not name.startswith(ADDED)
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that draws depend on."""
    by_package = {name: _version(name) for name in ("phalanx", "jax", "jaxlib", "numpyro", "numpy")}
    return {**by_package, "python": platform.python_version()}


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a source tree
        return "not installed"


def where_words(sharding: RowSharding) -> str:
    """Return the sharding of an array in words; an empty string for a replicated array."""
    return f", rows over {' and '.join(map(repr, sharding.axes))}" if sharding.axes else ""


def _labels(labels: Labels) -> str:
    """Return the names of columns or levels in the order of their numbers."""
    if not labels:
        return ""
    text = (
        ", ".join(labels) if len(labels) <= MOST_LABELS else f"{', '.join(labels[:MOST_LABELS])}, ... ({len(labels)})"
    )
    return f", {'levels' if isinstance(labels, Levels) else 'columns'} {text}"


def source_of(program: Any) -> str:
    """Return a program's source; an empty string if Python cannot find it."""
    try:
        return textwrap.dedent(inspect.getsource(inspect.unwrap(program)))
    except (OSError, TypeError):  # typed at a prompt, or an object
        return ""


MOST_ROWS = 1_000_000
"""Most rows that are compared."""


def distinct_rows(shapes: Mapping[str, tuple[int, ...]], names: AxisNames, named_dims: Set[str]) -> Names:
    """Return labels under which every row of a table has its own name.

    Labels that data give are left out if they lead to equal rows, such as `w[a,b,c]` of the levels `a,b` and `c`, and
    `a` and `b,c`.

    Args:
        shapes: shapes of the variables that tables have.
        names: names of their axes.
        named_dims: dimensions with entries that the user named.

    Raises:
        ValueError: when names of variables, or of entries that the user gave, lead to equal rows.
    """
    labels = dict(names.labels)
    for name in [name for name in _equal_rows(shapes, labels) if not named_dims & set(names.dims.get(name, ()))]:
        labels.pop(name, None)
    for name, (row, other) in _equal_rows(shapes, labels).items():
        of = f"two entries of {name!r}" if name == other else f"the variables {other!r} and {name!r}"
        raise ValueError(
            f"Tables would have two rows {row!r}: of {of}. Rename a variable in the model, or give other coords=."
        )
    return labels


def _equal_rows(shapes: Mapping[str, tuple[int, ...]], labels: Names) -> dict[str, tuple[str, str]]:
    """Return the variables with a row whose name another row has: that row, and the variable of the other."""
    all_levels = (word for axes in labels.values() if len(axes) > 1 for levels in axes if levels for word in levels)
    may_be_equal = any("[" in name for name in shapes) or any("," in word for word in all_levels)
    if not may_be_equal or sum(map(math.prod, shapes.values())) > MOST_ROWS:
        return {}
    owners: dict[str, str] = {}
    equal: dict[str, tuple[str, str]] = {}
    for name, shape in shapes.items():
        for row in element_names(name, shape, labels):
            owner = owners.setdefault(row, "")
            if owner:
                equal |= {owner: (row, name), name: (row, owner)}
            owners[row] = owner or name
    return equal
