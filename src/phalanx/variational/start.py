"""Start of a fit: the guide beside its model, and the initial values of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array, random
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.density.minibatch import Minibatch
from phalanx.density.target import choose_mesh
from phalanx.inputs.arguments import split_arguments
from phalanx.inputs.known_data import labels_of
from phalanx.language.parameters import arrays_of
from phalanx.language.tracing import Program
from phalanx.learning.compiled import Compiled, Compiler
from phalanx.mesh.processes import all_to_devices, to_host
from phalanx.mesh.specs import PyTree
from phalanx.posterior.posterior import Posterior
from phalanx.variational import checks
from phalanx.variational.guides.aligned import ProgramGuide
from phalanx.variational.guides.constructors import MAKERS
from phalanx.variational.guides.guide import Guide
from phalanx.variational.guides.guide_and_model import Pair, init_parameters, key_of
from phalanx.variational.guides.learned import Params
from phalanx.variational.monitoring.stream import streamed_rows
from phalanx.variational.problem import Problem
from phalanx.variational.result import Fit

Init = Mapping[str, Any] | Fit | Posterior
"""Values to begin with, by name; a fit to continue; or a posterior, about whose means a guide begins."""

Misfits = Mapping[tuple[str, str], Array]
"""Flags that are true where a value is refused, by name and message."""


def pair_of(
    model: Program,
    guide: Guide | Callable[..., Any] | None,
    data: object,
    mesh: Mesh | None,
    batch_size: int | None,
    num_rows: int | None,
    init: Init | None = None,
) -> Pair:
    """Return the guide beside its model; levels and columns of the data are numbered as in the fit `init`."""
    guide = next((maker() for maker in MAKERS if guide is maker), guide)
    names = init.record.names if isinstance(init, Fit) else None
    arguments = split_arguments(model, {} if data is None else data, labels_of(names or {}).get)
    mesh = choose_mesh(arguments, mesh)
    checks.check_not_autoguide(guide)
    minibatch = None if batch_size is None else Minibatch.of(batch_size, arguments, mesh)
    minibatch = minibatch if num_rows is None else streamed_rows(arguments, num_rows)
    problem = Problem(model, arguments, mesh, minibatch).with_values()
    if isinstance(guide, Guide):
        checks.check_coordinates(problem, guide.name)
    elif guide is None or callable(guide):
        guide = ProgramGuide.of(guide, problem)
    else:
        raise TypeError(
            f"guide: expected a program, one made from the model, such as phx.guides.mean_field(), or None for maximum "
            f"likelihood; got {guide!r}."
        )
    checks.check_solved(pair := Pair(problem, guide))
    return pair


@dataclass(frozen=True)
class FirstParameters:
    """The initial parameters: a call computes them by a program that compiles in the background until then."""

    pair: Pair
    program: Compiled
    arguments: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        pair: Pair,
        compiler: Compiler,
        seed: int,
        arrays: tuple[Array, ...],
        init: Init | None,
        continues: bool = False,
    ) -> FirstParameters:
        """Check the user's `init`, and start to compile; a fit that `continues` another begins at its last step."""
        init_values = init_of(init, pair, continues)

        first = partial(first_values, pair)
        arguments = (np.uint32(seed), arrays, init_values)

        def laid_out(shapes: tuple[Any, ...]) -> tuple[Any, ...]:
            free, *flags = shapes
            mesh = pair.problem.mesh
            everywhere = jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), tuple(flags))
            return pair.learned.shardings(mesh, free), *everywhere  # large weights are sharded from the start

        identity = key_of(pair, "begin")
        program = compiler(first, *arguments, out_shardings=laid_out, rarely=True, identity=identity)
        return cls(pair, program, arguments)

    @property
    def given(self) -> dict[str, Any]:
        """The user's `init`, by name."""
        return self.arguments[-1]

    @property
    def shapes(self) -> dict[str, Any]:
        """Shapes of the parameters, on the real line."""
        return self.program.out_info[0]

    def values_from(self, compiler: Compiler) -> Callable[[Params], dict[str, Any]]:
        """Return the function from points of the real line to the parameters' values; it compiles in the background."""
        learned_params = self.pair.learned
        layout = learned_params.shardings(self.pair.problem.mesh, self.shapes)
        free = jax.tree.map(lambda leaf, where: leaf.update(sharding=where), self.shapes, layout)
        program = compiler(learned_params.constrain, free, rarely=True, identity=key_of(self.pair, "values"))
        return lambda free: program(all_to_devices(free, layout))

    def __call__(self) -> dict[str, Any]:
        """Return the parameters, on the real line.

        Raises:
            ValueError: when a given value lies outside of its constraint or support, naming it.
        """
        free, *flags = self.program(*self.arguments)
        check_misfits(*flags)
        return free

    def as_given(self) -> dict[str, Any]:
        """Return the parameters, the user's unchanged, even for a guide that finds its own."""
        free = self()
        learned_params = self.pair.learned.only(self.given)
        user_parameters = learned_params.free({name: self.given[name] for name in learned_params.parameters})
        return {**free, **{name: all_to_devices(value, _layout(free[name])) for name, value in user_parameters.items()}}


def first_values(pair: Pair, seed: Array, arrays: Sequence[Array], init: Params) -> tuple[Params, Misfits, Misfits]:
    """Return the initial parameters on the real line, and flags of given values that do not fit."""
    key = random.fold_in(random.key(seed), 0x696E6974)
    data = pair.problem.arguments.join(arrays)
    start_params = pair.problem.alone(lambda: init_parameters(pair, key, data, init))
    free = pair.learned.free(start_params.values)
    return free, pair.learned.misfits(start_params.values, free), start_params.misfits


def check_misfits(*flags: Misfits, sets: int = 1) -> dict[int, str]:
    """Return the data sets for which a given value lies outside of its constraint or support, with the reason.

    Raises:
        ValueError: when it does for all.
    """
    by_set: dict[int, str] = {}
    for (_, sentence), bad in (item for misfits in reversed(flags) for item in misfits.items()):  # variables first
        numbers = np.flatnonzero(to_host(bad))
        by_set = dict.fromkeys(numbers[numbers < sets].tolist(), sentence) | by_set
    if len(by_set) == sets:
        raise ValueError(by_set[0])
    return by_set


def _layout(value: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.sharding, value)


def init_of(init: Init | None, pair: Pair, continues: bool = False) -> dict[str, Any]:
    """Return the user's `init` by name, as floating-point arrays; of a fit to continue, those of its last step."""
    if init is None:
        return {}
    of_guide = () if pair.program_guide else pair.problem.latents
    latents = [latent.name for latent in of_guide]
    names = [*pair.learned.parameters, *latents]
    if isinstance(init, Fit):
        params = init.params if init.last is None or not continues else init.last
        values = {name: value for name, value in params.items() if name in pair.learned.parameters}
        if not values:
            raise ValueError(
                f"init: the fit has the parameters {', '.join(map(repr, init.params))}, but this one has no parameter "
                f"of these names; it has {', '.join(map(repr, pair.learned.parameters))}."
            )
    elif isinstance(init, Posterior):
        draws = init.of_all_chains.draws  # all processes make this call together
        values = {name: np.mean(np.asarray(draws[name]), (0, 1)) for name in latents if name in draws}
    elif isinstance(init, Mapping):
        values = dict(init)
    else:
        raise TypeError(f"init: expected a dict of values by name, a fit or a posterior; got {init!r}.")
    if both := [name for name in values if name in latents and name in pair.learned.parameters]:
        raise ValueError(
            f"init: {both[0]!r} is both a variable of the model and a parameter of the guide {pair.guide.name}. Rename "
            f"the variable."
        )
    checks.check_init(values, names, of_guide)
    return {name: arrays_of(name, value) for name, value in values.items()}
