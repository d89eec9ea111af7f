"""Many networks side by side: the code is that of one, members lie on lanes and devices."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.sharding import Mesh, PartitionSpec

from phalanx.ensembles import checkpoint, checks
from phalanx.ensembles.epochs import Epoch, Epochs
from phalanx.ensembles.placement import Placement
from phalanx.ensembles.prediction import Prediction
from phalanx.errors.model_errors import model_errors
from phalanx.kernels.protocol.options import whole
from phalanx.learning.batches import rows_of_epoch
from phalanx.learning.loop import Loop, Stop
from phalanx.mesh.interrupts import Interrupts
from phalanx.mesh.keys import check_seed
from phalanx.run.progress.display import make_progress
from phalanx.run.progress.watchdog import watched

State = Any
"""What is trained of one network: a pytree of arrays."""

EVERYWHERE = PartitionSpec()

MOST_MAPPED = 8
"""Functions of the members that are kept compiled."""

IN_STEPS, IN_FUNCTIONS = 0xFFFFFFFE, 0xFFFFFFFF
"""What a member's key is folded with before the number of the step: `init` may split the key itself into any few."""


class Ensemble:
    """Networks trained side by side; make one with `phx.ensemble`.

    Attributes:
        num_members: how many.
        epoch: epochs trained.
        steps: updates made.
        interrupted: whether Ctrl-C ended the latest `train` before its last epoch.
    """

    def __init__(self, init: Callable[..., State], update: Callable[..., Any], placement: Placement, seed: int):
        self._update, self._placement, self._seed = update, placement, seed
        self._takes_key = "key" in inspect.signature(update).parameters
        self.num_members, self.epoch, self.steps = placement.count, 0, 0
        self.interrupted, self._interrupts = False, Interrupts()
        self._programs: dict[Any, Any] = {}
        self._mapped: dict[Any, Any] = {}

        def begin_one(key: Array) -> State:
            with checks.one_network("init"):
                state = init(random.wrap_key_data(key))
            checks.check_begun(state)
            return state

        def begin(keys: Array) -> State:
            return placement.each(begin_one, keys)

        begin_group = placement.on_mesh(begin, placement.members, placement.members)
        self._states = [begin_group(keys) for keys in self._keys]

    def member_key(self, member: int) -> Array:
        """The key from which a member begins: `fold_in(key(seed), member)`."""
        return random.fold_in(random.key(self._seed), member)

    def member(self, member: int) -> State:
        """The state of one member, as `init` and `update` of one network have it."""
        if not -self.num_members <= member < self.num_members:
            raise IndexError(f"ensemble: there is no member {member}; there are {self.num_members}.")
        state = self._placement.take(self._states, member % self.num_members)
        # a copy: the next step may put its own numbers where these are
        return jax.tree.map(lambda leaf: _like(np.array(_as_data(leaf)), leaf), state)

    @property
    def members(self) -> State:
        """The states of all members, `(members, ...)`, on the host."""
        return self._placement.join([jax.tree.map(_as_data, state) for state in self._states])

    def update(self, batch: Any) -> dict[str, np.ndarray]:
        """One step of every member on the same batch; what `update` measured, `(members,)` each."""
        placed = self._placement.everywhere(batch)
        with self._interrupts.held():
            measured = self._step(placed, None)
        return self._fetch([measured])

    def train(
        self, data: Any, *, batch_size: int, num_epochs: int = 1, order: str = "shared", seed: int = 0,
        drop_last: bool = False, apply: Callable[[State, Any], Array] | None = None, progress: bool = False,
    ) -> Iterator[dict[str, np.ndarray]]:  # fmt: skip
        """Train epoch by epoch; the data are on each device once.

        Ctrl-C ends training after the step under way: the last that is handed over are averages over the steps that the
        epoch has made, if any, and `interrupted` is True. That epoch does not count as trained.

        Args:
            data: arrays with one leading row for each example, or a tree of such; `update` is given batches of it.
            batch_size: rows of a batch; the last of an epoch may have fewer. On a mesh with a `data` axis they lie over
                it, where they come out even.
            num_epochs: how often all rows are seen.
            order: "shared", the same batches for all; "own", an order for each member; "bootstrap", rows drawn with
                replacement for each member.
            seed: of the order.
            drop_last: leave out a last batch that has fewer rows; which rows it has is another matter in every epoch.
            apply: `apply(state, inputs)`, the logits of one network, where the data are inputs and labels: after each
                epoch `ensemble_loss` and `ensemble_accuracy` are those of the mean of the members' probabilities on
                the training data, whatever the placement.
            progress: whether to show steps and what `update` measured, also within an epoch.

        Returns:
            An iterator that trains an epoch whenever it is asked for the next of what `update` measured, averaged over
            the epoch's rows, `(members,)` each.

        Raises:
            ValueError: when rows differ in number, there are none or fewer than a batch with `drop_last`, or an
                argument is out of range.
        """
        rows = checks.count_rows("ensemble.train: the data", data)
        size = whole("ensemble.train", "batch_size", batch_size)
        epochs = whole("ensemble.train", "num_epochs", num_epochs)
        checks.check_order(order)
        check_seed(seed)
        if not isinstance(drop_last, bool | np.bool_):
            raise TypeError(f"ensemble.train: drop_last must be True or False; got {drop_last!r}.")
        if drop_last and rows < size:
            raise ValueError(f"ensemble.train: with drop_last=True the {rows} rows make no batch of {size}.")
        if apply is not None:
            checks.check_labelled(data)
        checks.check_finite(self._first_step, lambda: self.member(0), data, min(size, rows))

        def batches() -> tuple[np.ndarray, ...]:
            of_epoch = rows_of_epoch(order, seed, self.epoch, self.num_members, rows)
            cut = (of_epoch[..., first : first + size] for first in range(0, rows, size))
            return tuple(batch for batch in cut if batch.shape[-1] == size or not drop_last)

        return self._epochs(data, batches, epochs, apply, bool(progress))

    def predict(self, apply: Callable[[State, Any], Array], inputs: Any, *, batch_size: int = 1000) -> Prediction:
        """What every member says of rows, as probabilities.

        Args:
            apply: `apply(state, inputs)` gives the logits of one network, `(rows, classes)`. It is compiled once for
                each function: give one that is kept, and not a new one in every call.
            inputs: an array with one leading row for each example, or a tree of such.
            batch_size: rows worked on at once.

        Returns:
            The members' probabilities.

        Raises:
            ValueError: when there are no rows, `batch_size` is no whole number of at least 1, or what `apply` returns
                has another shape.
        """
        rows = checks.count_rows("ensemble.predict: inputs", inputs)
        size = min(whole("ensemble.predict", "batch_size", batch_size), rows)

        def of(state: State, some: Any) -> Array:
            logits = apply(state, self._placement.rows(some))
            checks.check_logits(logits, len(jax.tree.leaves(some)[0]))
            return jax.nn.softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))

        probabilities = self._each("predict", apply, of)
        parts = []
        for first in range(0, rows, size):
            # the last batch goes back a little, so that one program serves all
            start = min(first, rows - size)
            some = jax.tree.map(lambda leaf, start=start: leaf[start : start + size], inputs)
            parts.append(probabilities(some)[:, first - start :])
        return Prediction(np.concatenate(parts, axis=1))

    def map(self, f: Callable[..., Any], *shared: Any) -> Any:
        """`f(state, *shared)` of every member, `(members, ...)`, on the host.

        An `f` with an argument `key` is given a key of each member, another one after every step. It is compiled once
        for each `f`: give a function that is kept, and not a new one in every call.
        """
        return self._each("map", f, f)(*shared)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write all members to a folder, with Orbax; an ensemble that was saved there before is replaced.

        Raises:
            ImportError: when Orbax is not installed.
            FileExistsError: when the folder holds anything else.
        """
        counts = {"epoch": self.epoch, "steps": self.steps, **self._identity}
        checkpoint.save(folder, self.members, self._described, counts)

    def restore(self, folder: str | os.PathLike[str]) -> None:
        """Go on from a folder that an ensemble of as many such networks and the same seed was saved to, on any devices.

        Raises:
            ImportError: when Orbax is not installed.
            FileNotFoundError: when there is no ensemble.
            ValueError: when what was saved is of other networks, of another number or with another seed.
        """
        members, counts = checkpoint.restore(folder, self._states[0], self._described, self._identity)
        groups = zip(self._placement.split(members), self._states, strict=True)
        self._states = [jax.tree.map(_like, new, old) for new, old in groups]
        self.epoch, self.steps = counts["epoch"], counts["steps"]

    def _epochs(
        self, data: Any, batches: Callable[[], tuple[np.ndarray, ...]], num_epochs: int,
        apply: Callable[[State, Any], Array] | None, progress: bool,
    ) -> Iterator[dict[str, np.ndarray]]:  # fmt: skip
        placed, join, self.interrupted = self._placement.everywhere(data), self._placement.join, False
        method = Epochs(batches, lambda rows: self._step(placed, rows), join, self.num_members, num_epochs, progress)
        loop, ended = Loop(method, method.init(None)), 0

        def measured(state: Epoch) -> dict[str, np.ndarray]:
            found = self._fetch(state.measured, [rows.shape[-1] for rows in state.batches[: state.made]])
            return found if apply is None else {**found, **self._own_scores(apply, data)}

        with watched(make_progress(progress)) as display:
            for state in loop.blocks(display):
                if state.epochs > ended:
                    ended, self.epoch = state.epochs, self.epoch + 1
                    yield measured(state)
        state, self.interrupted = loop.state, loop.stopped is Stop.INTERRUPTED
        if self.interrupted and (state.epochs > ended or 0 < state.made < len(state.batches)):
            self.epoch += state.epochs - ended
            yield measured(state)

    def _first_step(self, state: State, batch: Any) -> Any:
        """Return the result of a step of one network on a batch."""
        with checks.one_network("update"):
            return self._update(state, batch, **({"key": self.member_key(0)} if self._takes_key else {}))

    def _own_scores(self, apply: Callable[[State, Any], Array], data: Any) -> dict[str, np.ndarray]:
        """Loss and accuracy of the mean of the members' probabilities."""
        inputs, labels = data
        scores = self.predict(apply, inputs).scores(np.asarray(labels))
        return {"ensemble_loss": np.asarray(scores.nll), "ensemble_accuracy": np.asarray(scores.accuracy)}

    def _each(self, what: str, name: Callable[..., Any], f: Callable[..., Any]) -> Callable[..., Any]:
        """`f(state, *shared)` of every member as one function of `shared`, compiled once for each `name`."""
        placement, takes_key = self._placement, "key" in inspect.signature(f).parameters

        def on_device(states: tuple[State, ...], keys: tuple[Array, ...], shared: Any, number: Array) -> Any:
            def one(state: State, key: Array) -> Any:
                with checks.one_network("a function of the members"):
                    if not takes_key:
                        return f(state, *shared)
                    return f(state, *shared, key=_key_of(key, IN_FUNCTIONS, number))

            return tuple(placement.each(one, state, key) for state, key in zip(states, keys, strict=True))

        if (what, name) not in self._mapped:
            specs = placement.members, placement.members, EVERYWHERE, EVERYWHERE
            self._mapped[what, name] = placement.on_mesh(on_device, specs, placement.members)
            while len(self._mapped) > MOST_MAPPED:
                self._mapped.pop(next(iter(self._mapped)))
        run = self._mapped[what, name]

        def all_members(*shared: Any) -> Any:
            placed, number = placement.everywhere(shared), jnp.uint32(self.steps)
            groups = [
                placement.in_turn(run(tuple(self._states[s]), tuple(self._keys[s]), placed, number))
                for s in placement.runs()
            ]
            return placement.join([group for part in groups for group in part])

        return all_members

    @property
    def _described(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return checks.describe(jax.eval_shape(lambda: jax.tree.map(_as_data, self._placement.take(self._states, 0))))

    @property
    def _identity(self) -> dict[str, int]:
        return {"members": self.num_members, "seed": self._seed}

    @cached_property
    def _keys(self) -> list[Array]:
        data = np.stack([np.asarray(random.key_data(self.member_key(m))) for m in range(self.num_members)])
        return self._placement.split(data)

    def _step(self, data: Any, rows: np.ndarray | None) -> list[Any]:
        """One step of every member, on the batch or on rows of the data; what was measured, by group."""
        own = rows is not None and rows.ndim == 2
        chosen = self._placement.split(rows) if own else self._placement.everywhere(rows)
        if own not in self._programs:
            self._programs[own] = self._compile_step(own)
        measured, number = [], jnp.uint32(self.steps)
        for some in self._placement.runs():
            states, keys = tuple(self._states[some]), tuple(self._keys[some])
            of_these = tuple(chosen[some]) if own else chosen
            self._states[some], found = self._programs[own](states, keys, data, of_these, number)
            measured += self._placement.in_turn(found)
        self.steps += 1
        return measured

    def _compile_step(self, own: bool) -> Any:
        """A step of a few groups, each with rows of its own or all with the same; compiled when it is first called."""
        placement = self._placement

        def one(state: State, key: Array, data: Any, rows: Any, number: Array) -> tuple[State, Any]:
            batch = placement.rows(data if rows is None else jax.tree.map(lambda leaf: leaf[rows], data))
            own = {"key": _key_of(key, IN_STEPS, number)} if self._takes_key else {}
            arguments = {"state": state, "batch": batch}
            with checks.one_network("update"), model_errors(self._update, arguments=arguments):
                new = self._update(state, batch, **own)
            return checks.check_step(new, state)

        def on_device(states: tuple[State, ...], keys: tuple[Array, ...], data: Any, rows: Any, number: Array) -> Any:
            new = []
            for i, (state, key) in enumerate(zip(states, keys, strict=True)):
                if own:
                    new.append(placement.each(lambda s, k, r: one(s, k, data, r, number), state, key, rows[i]))
                else:
                    new.append(placement.each(lambda s, k: one(s, k, data, rows, number), state, key))
            return tuple(zip(*new, strict=True))

        members = placement.members
        specs = members, members, EVERYWHERE, members if own else EVERYWHERE, EVERYWHERE
        return placement.on_mesh(on_device, specs, (members, members), donate=(0,))

    def _fetch(self, measured: Sequence[list[Any]], weights: Sequence[int] | None = None) -> dict[str, np.ndarray]:
        """Averages over steps of what was measured, `(members,)`."""
        steps = [self._placement.join(groups) for groups in measured]
        return jax.tree.map(
            lambda *values: np.average(np.stack(values).astype(np.float64), axis=0, weights=weights), *steps
        )


def ensemble(
    init: Callable[..., State], update: Callable[..., Any], num_members: int, *, mesh: Mesh | None = None, seed: int = 0
) -> Ensemble:
    """Train many networks side by side with the code for one.

    Member `k` is, step for step, the network that would be trained alone from `fold_in(key(seed), k)`: `init` is given
    this key, and `update` at step `n` the key `fold_in(fold_in(that, 2**32 - 2), n)`.

    Args:
        init: `init(key)` makes the state of one network: parameters, the optimiser's state, whatever is trained.
        update: `update(state, batch)` or `update(state, batch, key)` makes one step of one network and returns the new
            state and a dict of what it measured, scalars. `phx.ensembles.learner` makes both from a network and an
            optimiser of optax.
        num_members: how many, on however many devices.
        mesh: the devices, from `phx.make_mesh`: members lie along `chain`, and the rows of each member's batches along
            `data`; by default all along `chain`, of a CPU one for each core.
        seed: a whole number.

    Returns:
        The ensemble, its members begun.

    Raises:
        TypeError: when `init` or `update` is no function of what they are given, or returns something else; the latter
            at the first step.
        ValueError: when `num_members` is no whole number of at least 1, or the mesh has devices off its `chain` and
            `data` axes.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, phalanx as phx
        >>> def init(key):
        ...     return jax.random.normal(key, (3,))
        >>> def update(w, batch):
        ...     x, y = batch
        ...     loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        ...     return w - 0.1 * gradient, {"loss": loss}
        >>> ensemble = phx.ensemble(init, update, num_members=5)
        >>> x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
        >>> for measured in ensemble.train((x, x.sum(1)), batch_size=8, num_epochs=2):
        ...     print(measured["loss"].shape)
        (5,)
        (5,)

    Source:
        Lakshminarayanan, Pritzel, Blundell (2017), Simple and scalable predictive uncertainty estimation using deep
        ensembles.
    """
    checks.check_functions(init, update)
    check_seed(seed)
    return Ensemble(init, update, Placement.of(whole("phx.ensemble", "num_members", num_members), mesh), seed)


def _key_of(key: Array, purpose: int, number: Array) -> Array:
    """A member's key for one purpose at a step."""
    return random.fold_in(random.fold_in(random.wrap_key_data(key), purpose), number)


def _as_data(leaf: Array) -> Array:
    """Keys of random numbers as plain numbers."""
    return random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _like(new: Any, old: Array) -> Array:
    """Plain numbers as keys again where they were."""
    of_keys = jnp.issubdtype(old.dtype, jax.dtypes.prng_key)
    return random.wrap_key_data(new, impl=random.key_impl(old)) if of_keys else jnp.asarray(new)
