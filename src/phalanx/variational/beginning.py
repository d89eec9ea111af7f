"""Where a fit begins: guide and model side by side, and the initial values of what is learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from phalanx.posterior.posterior import Posterior
from phalanx.variational import checks
from phalanx.variational.guides.aligned import ProgramGuide
from phalanx.variational.guides.constructors import MAKERS
from phalanx.variational.guides.guide import FollowsModel, Guide
from phalanx.variational.guides.pair import Pair
from phalanx.variational.monitoring.stream import Streamed
from phalanx.variational.problem import Problem
from phalanx.variational.result import Fit


def pair_of(
    model: Program, guide: Any, data: Any, mesh: Mesh | None, batch_size: int | None, num_rows: int | None,
    init: Any = None,
) -> Pair:  # fmt: skip
    """Guide and model side by side; data are numbered as those of the fit that is gone on with, `init`."""
    if any(guide is maker for maker in MAKERS):
        guide = guide()
    names = init.record.names if isinstance(init, Fit) else None
    arguments = split_arguments(model, {} if data is None else data, labels_of(names or {}).get)
    checks.check_one_process("fit")
    mesh = choose_mesh(arguments, mesh)
    minibatch = None if batch_size is None else Minibatch.of(batch_size, arguments, mesh)
    minibatch = minibatch if num_rows is None else Streamed.one_of(arguments, num_rows)
    problem = Problem(model, arguments, mesh, minibatch).with_values()
    if guide is None:
        guide = ProgramGuide()
    elif not isinstance(guide, Guide) and callable(guide):
        guide = ProgramGuide(guide)
    elif not isinstance(guide, Guide):
        raise TypeError(
            f"guide: expected a program, one made from the model, such as phx.guides.mean_field(), or None for maximum "
            f"likelihood; got {guide!r}."
        )
    if not (pair := Pair(problem, guide)).reads_data:
        pair.check()
    if isinstance(guide, FollowsModel):
        pair = Pair(problem, guide.following(problem))
    checks.check_solved(pair)
    return pair


@dataclass(frozen=True)
class FirstParameters:
    """The parameters to begin with, which are computed when it is called; what computes them is compiled meanwhile."""

    pair: Pair
    program: Compiled
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, pair: Pair, compiler: Compiler, seed: int, arrays: tuple[Array, ...], init: Any) -> FirstParameters:
        """Begin to compile, after a look at what the user gave as `init`."""
        given = _init_of(init, pair)

        def begin(seed: Array, arrays: Any, given: Any) -> Any:
            key, data = random.fold_in(random.key(seed), 0x696E6974), pair.problem.data(arrays)
            begun = pair.problem.alone(lambda: pair.begin(key, data, given))
            free = pair.learned.free(begun.values)
            return free, pair.learned.misfits(begun.values, free), begun.misfits

        traced_once, arguments = jax.jit(begin), (np.uint32(seed), arrays, given)

        def laid_out() -> Any:
            free, *flags = jax.eval_shape(traced_once, *arguments)
            mesh = pair.problem.mesh
            everywhere = jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), tuple(flags))
            return pair.learned.shardings(mesh, free), *everywhere  # large weights are nowhere whole

        program = compiler(traced_once, *arguments, out_shardings=laid_out, rarely=True, identity=pair.key_of("begin"))
        return cls(pair, program, arguments)

    @property
    def given(self) -> dict[str, Any]:
        """What the user gave as `init`, by name."""
        return self.arguments[-1]

    @property
    def shapes(self) -> dict[str, Any]:
        """Their shapes, on the real line."""
        return self.program.made[0]

    def values_from(self, compiler: Compiler) -> Callable[[Any], dict[str, Any]]:
        """What makes the parameters' values of points of the real line, compiled while the fit goes on."""
        learned = self.pair.learned
        layout = learned.shardings(self.pair.problem.mesh, self.shapes)
        free = jax.tree.map(lambda leaf, where: leaf.update(sharding=where), self.shapes, layout)
        program = compiler(learned.constrain, free, rarely=True, identity=self.pair.key_of("values"))
        return lambda free: program(jax.device_put(free, layout))

    def __call__(self) -> dict[str, Any]:
        """The parameters, on the real line.

        Raises:
            ValueError: when what was given lies outside of where it may, naming it.
        """
        free, *flags = self.program(*self.arguments)
        for (_, sentence), bad in (item for misfits in flags for item in misfits.items()):
            if np.asarray(bad):
                raise ValueError(sentence)
        return free

    def as_given(self) -> dict[str, Any]:
        """The parameters, those that were given as they are, also of a guide that would find its own."""
        free, named = self(), self.pair.learned.only(self.given)
        kept = named.free({name: self.given[name] for name in named.parameters})
        return {**free, **{name: jax.device_put(value, _layout(free[name])) for name, value in kept.items()}}


def _layout(value: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, value)


def _init_of(init: Any, pair: Pair) -> dict[str, Any]:
    """What the user gave as `init`, by name, in the types of what it is given for."""
    if init is None:
        return {}
    latents = [latent.name for latent in pair.latents]
    known = [*pair.learned.parameters, *latents]
    if isinstance(init, Fit):
        found = {name: value for name, value in init.params.items() if name in pair.learned.parameters}
        if not found:
            raise ValueError(
                f"init: the fit has the parameters {', '.join(map(repr, init.params))}, and here there are "
                f"{', '.join(map(repr, pair.learned.parameters))}: none is the same."
            )
    elif isinstance(init, Posterior):
        found = {name: np.mean(init.draws[name], (0, 1)) for name in latents if name in init.draws}
    elif isinstance(init, Mapping):
        found = dict(init)
    else:
        raise TypeError(f"init: expected a dict of values by name, a fit or a posterior; got {init!r}.")
    if both := [name for name in found if name in latents and name in pair.learned.parameters]:
        raise ValueError(
            f"init: {both[0]!r} is a variable of the model and a parameter of the guide {pair.name}, too: whose value "
            f"is meant? Rename the variable."
        )
    checks.check_init(found, known, pair.latents)
    return {name: arrays_of(name, value) for name, value in found.items()}
