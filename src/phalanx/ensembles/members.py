"""Members of an ensemble on their devices: states by group, their keys, and compiled functions of one member."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.sharding import PartitionSpec

from phalanx.ensembles import checks
from phalanx.ensembles.placement import Placement
from phalanx.errors.model_errors import model_errors
from phalanx.mesh.processes import to_host
from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Integer, UInt32

State = Any
"""State of one network: a pytree of arrays."""

EVERYWHERE = PartitionSpec()

MOST_MAPPED = 8
"""Functions of the members that are kept compiled."""

IN_STEPS = 0xFFFFFFFE
"""Number folded into a member's key before the number of the step: `init` may split the key itself."""

IN_FUNCTIONS = 0xFFFFFFFF
"""The same for functions with an argument `key`, which `Ensemble.map` calls."""


class Members:
    """States of the members of an ensemble.

    Attributes:
        init: `init(key)`, the state of one network.
        update: `update(state, batch[, key])`, a step of one network.
        placement: how members lie on devices.
        seed: seed of their keys.
        states: arrays by group.
        steps: steps made.
        is_whole: False while a step is under way: some groups have made it, and others not.
    """

    def __init__(self, init: Callable[..., State], update: Callable[..., Any], placement: Placement, seed: int):
        self.init = init
        self.update = update
        self.placement = placement
        self.seed = seed
        self.takes_key = "key" in inspect.signature(update).parameters
        self.steps = 0
        self.is_whole = True
        self._programs: dict[bool, Callable[..., Any]] = {}
        self._mapped: dict[Any, Callable[..., Any]] = {}

        def begin_one(key: UInt32[Array, "words"]) -> State:
            with checks.one_network("init"):
                state = init(random.wrap_key_data(key))
            checks.check_begun(state)
            return state

        def begin(keys: UInt32[Array, "..."]) -> State:
            return placement.each(begin_one, keys)

        begin_group = placement.on_mesh(begin, placement.members, placement.members)
        self.states = [begin_group(keys) for keys in self.keys]

    @property
    def count(self) -> int:
        """Number of members."""
        return self.placement.count

    def key(self, member: int) -> Array:
        """Return the key from which a member begins."""
        return random.fold_in(random.key(self.seed), member)

    @cached_property
    def keys(self) -> list[UInt32[Array, "..."]]:
        """Keys of all members as numbers, by group."""
        data = np.stack([np.asarray(random.key_data(self.key(m))) for m in range(self.count)])
        return self.placement.split(data)

    def take(self, member: int) -> State:
        """Return a copy of one member's state: the next step reuses the memory of the original."""
        state = self.placement.take(self.states, member)
        return jax.tree.map(lambda leaf: _like(np.array(to_host(as_data(leaf))), leaf), state)

    def together(self) -> State:
        """Return the states of all members, `(members, ...)`, on the host; keys as plain numbers."""
        return self.placement.join([jax.tree.map(as_data, state) for state in self.states])

    def put(self, states: State, steps: int) -> None:
        """Replace the states, given as `together` returns them, and the number of steps."""
        groups = zip(self.placement.split(states), self.states, strict=True)
        self.states = [jax.tree.map(_like, new, old) for new, old in groups]
        self.steps = steps

    @property
    def described(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of a member's arrays, by name."""
        return checks.describe(jax.eval_shape(lambda: jax.tree.map(as_data, self.placement.take(self.states, 0))))

    @property
    def like(self) -> State:
        """Shapes of a member's state."""
        return jax.eval_shape(lambda: self.placement.take(self.states, 0))

    def first_step(self, state: State, batch: PyTree) -> PyTree:
        """Return the result of a step of one network on a batch."""
        with checks.one_network("update"):
            return self.update(state, batch, **({"key": self.key(0)} if self.takes_key else {}))

    def step(self, data: PyTree, rows: Integer[np.ndarray, "*members batch"] | None) -> list[PyTree]:
        """Make one step of every member on rows of the data, or on all of them.

        Args:
            data: arrays on every device.
            rows: numbers of the rows, the same for all members or for each its own; None for all.

        Returns:
            The values that `update` measured, by group.
        """
        by_member = rows is not None and rows.ndim == 2
        shards = self.placement.split(rows) if by_member else self.placement.everywhere(rows)
        if by_member not in self._programs:
            self._programs[by_member] = self.compile_step(by_member)
        losses_of_members = []
        number = jnp.uint32(self.steps)
        self.is_whole = False
        for some in self.placement.runs():
            states = tuple(self.states[some])
            keys = tuple(self.keys[some])
            of_these = tuple(shards[some]) if by_member else shards
            self.states[some], losses = self._programs[by_member](states, keys, data, of_these, number)
            losses_of_members += self.placement.in_turn(losses)
        self.steps = self.steps + 1
        self.is_whole = True
        return losses_of_members

    def compile_step(self, by_member: bool) -> Callable[..., Any]:
        """Return a jitted step of a few groups, each on rows of its `own` or all on the same."""
        placement = self.placement

        def one(state: State, key: Array, data: PyTree, rows: PyTree, number: Array) -> tuple[State, Mapping[str, Any]]:
            batch = placement.rows(data if rows is None else jax.tree.map(lambda leaf: leaf[rows], data))
            by_member = {"key": _key_of(key, IN_STEPS, number)} if self.takes_key else {}
            arguments = {"state": state, "batch": batch}
            with checks.one_network("update"), model_errors(self.update, arguments=arguments):
                new = self.update(state, batch, **by_member)
            return checks.check_step(new, state)

        def on_device(
            states: tuple[State, ...], keys: tuple[Array, ...], data: PyTree, rows: PyTree, number: Array
        ) -> PyTree:
            new = []
            for i, (state, key) in enumerate(zip(states, keys, strict=True)):
                if by_member:
                    new.append(placement.each(lambda s, k, r: one(s, k, data, r, number), state, key, rows[i]))
                else:
                    new.append(placement.each(lambda s, k: one(s, k, data, rows, number), state, key))
            return tuple(zip(*new, strict=True))

        members = placement.members
        specs = members, members, EVERYWHERE, members if by_member else EVERYWHERE, EVERYWHERE
        return placement.on_mesh(on_device, specs, (members, members), donate=(0,))

    def each(self, what: str, name: Callable[..., Any], f: Callable[..., Any]) -> Callable[..., Any]:
        """Return `f(state, *arguments)` of all members as a function of `arguments`, compiled once for each `name`.

        Args:
            what: purpose of the function, part of its name.
            name: the user's function that `f` is made of.
            f: a function of one member; one with an argument `key` is given a key of the member.
        """
        placement = self.placement
        takes_key = "key" in inspect.signature(f).parameters

        def on_device(
            states: tuple[State, ...], keys: tuple[Array, ...], shared_arguments: PyTree, number: Array
        ) -> PyTree:
            def one(state: State, key: Array) -> PyTree:
                with checks.one_network("a function of the members"):
                    if not takes_key:
                        return f(state, *shared_arguments)
                    return f(state, *shared_arguments, key=_key_of(key, IN_FUNCTIONS, number))

            return tuple(placement.each(one, state, key) for state, key in zip(states, keys, strict=True))

        if (what, name) not in self._mapped:
            specs = placement.members, placement.members, EVERYWHERE, EVERYWHERE
            self._mapped[what, name] = placement.on_mesh(on_device, specs, placement.members)
            while len(self._mapped) > MOST_MAPPED:
                self._mapped.pop(next(iter(self._mapped)))
        run = self._mapped[what, name]

        def all_members(*shared_arguments: PyTree) -> PyTree:
            arguments = placement.everywhere(shared_arguments)
            number = jnp.uint32(self.steps)
            groups = [
                placement.in_turn(run(tuple(self.states[s]), tuple(self.keys[s]), arguments, number))
                for s in placement.runs()
            ]
            return placement.join([group for part in groups for group in part])

        return all_members


def as_data(leaf: Array) -> Array:
    """Return keys of random numbers as plain numbers, other arrays as they are."""
    return random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _like(new: Any, old: Array) -> Array:
    """Return plain numbers as keys again where `old` has keys."""
    of_keys = jnp.issubdtype(old.dtype, jax.dtypes.prng_key)
    return random.wrap_key_data(new, impl=random.key_impl(old)) if of_keys else jnp.asarray(new)


def _key_of(key: Array, purpose: int, number: Array) -> Array:
    """Return a member's key for one purpose at a step."""
    return random.fold_in(random.fold_in(random.wrap_key_data(key), purpose), number)
