"""Ensemble of networks: `phx.ensemble` and its methods. The user writes the code of one network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from phalanx.ensembles import checkpoint as checkpoints
from phalanx.ensembles import checks
from phalanx.ensembles.epochs import Epoch, Epochs
from phalanx.ensembles.members import Members, State
from phalanx.ensembles.placement import Placement
from phalanx.ensembles.prediction import Prediction
from phalanx.ensembles.watching import EnsembleWatch, Measured, Origin
from phalanx.kernels.protocol.options import check_integer
from phalanx.learning.batches import EpochBatches
from phalanx.learning.loop import Loop, Stop
from phalanx.mesh.agreement import check_same
from phalanx.mesh.interrupts import Interrupts
from phalanx.mesh.processes import agreed
from phalanx.mesh.random_numbers import check_seed
from phalanx.mesh.specs import PyTree
from phalanx.run.progress.display import make_progress
from phalanx.run.progress.watchdog import watched
from phalanx.store.policy import SavePolicy

if TYPE_CHECKING:
    from jaxtyping import Float


class _Saved(NamedTuple):
    """Checkpoint that has the ensemble's present state.

    Attributes:
        folder: its folder.
        steps: steps made when it was written.
        begun: the ensemble that its training began with.
    """

    folder: Path
    steps: int
    begun: Origin


class Ensemble:
    """Networks trained side by side; make one with `phx.ensemble`.

    Attributes:
        num_members: number of members.
        epoch: epochs trained.
        interrupted: True if Ctrl-C ended the latest `train` before its last epoch.
        history: averages of each epoch of the latest `train`, those before a resumption included; the names of nested
            ones are joined by dots.

    Example:
        >>> import jax, phalanx as phx
        >>> update = lambda w, batch: (w - 0.1 * (w - batch), {"loss": (w - batch) ** 2})
        >>> ensemble = phx.ensemble(jax.random.normal, update, num_members=3)
        >>> ensemble.update(2.0)["loss"].shape, ensemble.steps
        ((3,), 1)
    """

    def __init__(self, members: Members):
        self._members = members
        self._interrupts = Interrupts()
        self.num_members = members.count
        self.epoch = 0
        self.interrupted = False
        self.history: list[Measured] = []
        self._saved: _Saved | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "An ensemble cannot be pickled: its members are on the devices of its process. Write it with "
            "ensemble.save(path), and read it in another process into an ensemble of the same functions, "
            "ensemble.restore(path); ensemble.members and its predictions can be pickled."
        )

    @property
    def steps(self) -> int:
        """Steps made."""
        return self._members.steps

    def member_key(self, member: int) -> Array:
        """Return the key from which a member begins: `fold_in(key(seed), member)`."""
        return self._members.key(member)

    def member(self, member: int) -> State:
        """Return the state of one member, as `init` and `update` of one network have it."""
        if not -self.num_members <= member < self.num_members:
            raise IndexError(f"ensemble: there is no member {member}; there are {self.num_members}.")
        check_same("ensemble.member")
        return self._members.take(member % self.num_members)

    @property
    def members(self) -> State:
        """The states of all members, `(members, ...)`, on the host."""
        check_same("ensemble.members")
        return self._members.together()

    def update(self, batch: PyTree) -> Measured:
        """Make one step of every member on the same batch; return the values that `update` measured, `(members,)`."""
        placement = self._members.placement
        device_batch = placement.everywhere(batch)
        with self._interrupts.held():
            losses = self._members.step(device_batch, None)
            self._interrupts.agree(after=losses)
        return jax.tree.map(lambda values: values.astype(np.float64), placement.join(losses))

    def train(
        self,
        data: PyTree,
        *,
        batch_size: int,
        num_epochs: int = 1,
        order: str = "shared",
        seed: int = 0,
        drop_last: bool = False,
        apply: Callable[[State, Any], Array] | None = None,
        held_out: PyTree = None,
        checkpoint: SavePolicy | str | os.PathLike[str] | None = None,
        log: str | os.PathLike[str] | None = None,
        progress: bool = False,
    ) -> Iterator[Measured]:
        """Train epoch by epoch; the data are on each device once.

        Ctrl-C ends training after the step under way: the last averages that are handed over are those of the steps
        that the epoch has made, if any, and `interrupted` is True. Without a checkpoint the next `train` begins that
        epoch anew; with one the same call continues with the next batch.

        Args:
            data: arrays with one leading row for each example, or a tree of such; `update` is given batches of it.
            batch_size: rows of a batch; the last of an epoch may have fewer. On a mesh with a `data` axis the rows are
                sharded over it, where it divides them.
            num_epochs: number of times that all rows are seen.
            order: "shared", the same batches for all; "own", an order for each member; "bootstrap", rows drawn with
                replacement for each member.
            seed: seed of the order.
            drop_last: leave out the last batch if it has fewer rows; as the order changes, these are other rows in each
                epoch.
            apply: `apply(state, inputs)`, the logits of one network, where the data are inputs and labels: after each
                epoch `ensemble_loss` and `ensemble_accuracy` are those of the mean of the members' probabilities on
                the training data, whatever the placement.
            held_out: inputs and labels that training does not use: with `apply`, `held_out_loss` and
                `held_out_accuracy` are those of the mean of the members' probabilities on them.
            checkpoint: a folder, or `phx.checkpoint(folder, ...)` to choose when to save and what to keep. Training is
                saved there, by Orbax, every ten seconds or less often where saving takes longer than a fiftieth of the
                time, at its end, and after Ctrl-C or, within a step, SIGTERM, which ends the process with status 143.
                A thread writes while the devices compute.

                The same call resumes it, also on other devices: only epochs that are left are trained and handed over,
                and `history` has all. On the same devices members and averages are bit for bit those of a training
                that was never interrupted. A larger `num_epochs` trains longer.

                Another network, loss, optimiser, seed, batch size, order or data are refused; the message names what
                differs.
            log: a CSV file with a line for each epoch: epochs, steps, seconds, and averages over the members.
            progress: whether to show steps and the values that `update` measured, also within an epoch.

        Returns:
            An iterator that trains an epoch whenever it is asked for the next averages of the values that `update`
            measured, over the epoch's rows, `(members,)` each.

        Raises:
            FileExistsError: when the checkpoint's folder holds something else.
            ImportError: when Orbax, which a checkpoint needs, is not installed.
            ValueError: when arrays differ in their number of rows, rows are fewer than one, or than a batch with
                `drop_last`, an argument is out of range, or the checkpoint is damaged or of another training.
        """
        rows = checks.count_rows("ensemble.train: the data", data)
        size = check_integer("ensemble.train", "batch_size", batch_size)
        epochs = check_integer("ensemble.train", "num_epochs", num_epochs)
        checks.check_order(order)
        check_seed(seed)
        if not isinstance(drop_last, bool | np.bool_):
            raise TypeError(f"ensemble.train: drop_last must be True or False; got {drop_last!r}.")
        if drop_last and rows < size:
            raise ValueError(f"ensemble.train: with drop_last=True the {rows} rows make no batch of {size}.")
        if apply is not None:
            checks.check_labelled("data", data)
        if held_out is not None:
            checks.check_held_out(held_out, apply)
        policy = SavePolicy.of(checkpoint)
        checks.check_log(log)
        checks.check_finite(self._members.first_step, lambda: self.member(0), data, min(size, rows))
        batches = EpochBatches(rows, size, order, int(seed), self.num_members, bool(drop_last))
        origin = Origin(self.epoch, self.steps, "") if policy is None else self._begun(policy.folder.absolute())
        watch = EnsembleWatch(self._members, origin, batches, data, held_out, policy, log)

        def scores() -> Measured:
            of_ensemble = {} if apply is None else self._scores("ensemble", apply, data)
            return (
                of_ensemble
                if apply is None or held_out is None
                else {**of_ensemble, **self._scores("held_out", apply, held_out)}
            )

        return self._epochs(data, batches, epochs, scores, watch, bool(progress))

    def predict(self, apply: Callable[[State, Any], Array], inputs: PyTree, *, batch_size: int = 1000) -> Prediction:
        """Return the probabilities of rows by every member.

        Args:
            apply: `apply(state, inputs)`, the logits of one network, `(rows, classes)`. It is compiled once for each
                function: give the same function in every call.
            inputs: an array with one leading row for each example, or a tree of such.
            batch_size: rows evaluated at once.

        Returns:
            The members' probabilities.

        Raises:
            ValueError: when there are no rows, `batch_size` is not a whole number of at least 1, or `apply` returns
                another shape.
        """
        check_same("ensemble.predict")
        rows = checks.count_rows("ensemble.predict: inputs", inputs)
        size = min(check_integer("ensemble.predict", "batch_size", batch_size), rows)

        def of(state: State, some: Any) -> Float[Array, "rows classes"]:
            logits = apply(state, self._members.placement.rows(some))
            checks.check_logits(logits, len(jax.tree.leaves(some)[0]))
            return jax.nn.softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))

        probabilities = self._members.each("predict", apply, of)
        parts = []
        for first in range(0, rows, size):
            # the last batch overlaps the one before, so that all have one shape and one program
            start = min(first, rows - size)
            some = jax.tree.map(lambda leaf, start=start: leaf[start : start + size], inputs)
            parts.append(probabilities(some)[:, first - start :])
        return Prediction(np.concatenate(parts, axis=1))

    def map(self, f: Callable[..., Any], *arguments: PyTree) -> PyTree:
        """Return `f(state, *arguments)` of every member, `(members, ...)`, on the host.

        An `f` with an argument `key` is given a key of each member, another one after every step. It is compiled once
        for each `f`: give the same function in every call.
        """
        check_same("ensemble.map")
        return self._members.each("map", f, f)(*arguments)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write all members to a folder, with Orbax; an ensemble that was saved there before is replaced.

        Raises:
            ImportError: when Orbax is not installed.
            FileExistsError: when the folder holds anything else.
        """
        checkpoints.save(folder, self._members, self.epoch)

    def restore(self, folder: str | os.PathLike[str]) -> None:
        """Continue from a folder that an ensemble of as many such networks and the same seed was saved to.

        The devices may be others. The folder of `train(..., checkpoint=)` is read, too, and the manifest of a save in
        it, such as `save-00000012-at-2000.json`.

        Raises:
            ImportError: when Orbax is not installed.
            FileNotFoundError: when there is no ensemble.
            ValueError: when the folder holds other networks, another number of them or those of another seed.
        """
        index = checkpoints.restore(folder, self._members)
        self.epoch = index["epoch"]
        origin_entry = index.get("begun")
        self._saved = (
            None if origin_entry is None else _Saved(Path(folder).absolute(), self.steps, Origin(*origin_entry))
        )

    def _begun(self, folder: Path) -> Origin:
        """Return the ensemble that training in this folder began with.

        That of an earlier call, if the present state was saved there; else the ensemble as it is.
        """
        last_save = self._saved
        if last_save is not None and last_save[:2] == (folder, self.steps) and agreed(checkpoints.is_there(folder)):
            return last_save.begun
        return Origin.of(self._members, self.epoch)

    def _epochs(
        self,
        data: PyTree,
        batches: EpochBatches,
        num_epochs: int,
        scores: Callable[[], Measured],
        watch: EnsembleWatch,
        progress: bool,
    ) -> Iterator[Measured]:
        device_data = self._members.placement.everywhere(data)
        self.interrupted = False
        method = Epochs(self._members, device_data, batches, num_epochs, scores, watch, progress)
        loop = Loop(method, method.init(None), watch.training.checkpoint)
        num_epochs_before = loop.state.epochs
        self.epoch = method.epoch_of(loop.state)
        self.history = [look.measured for look in watch.training.looks]
        try:
            with watched(make_progress(progress)) as display:
                for state in loop.blocks(display):
                    if state.epochs > num_epochs_before and state.averages_of_epoch is not None:
                        num_epochs_before = self._note(method, state, watch)
                        yield state.averages_of_epoch
        finally:
            self._saved = None if watch.folder is None else _Saved(watch.folder, self.steps, watch.begun)
        state = loop.state
        self.interrupted = loop.stopped is Stop.INTERRUPTED
        if state.epochs > num_epochs_before and state.averages_of_epoch is not None:
            self._note(method, state, watch)
            yield state.averages_of_epoch
        elif self.interrupted and state.is_within:
            yield method.averages(state)

    def _note(self, method: Epochs, state: Epoch, watch: EnsembleWatch) -> int:
        """Note the epochs that have ended, and return their number."""
        self.epoch = method.epoch_of(state)
        self.history = [look.measured for look in watch.training.looks]
        return state.epochs

    def _scores(self, name: str, apply: Callable[[State, Any], Array], data: PyTree) -> Measured:
        """Return loss and accuracy of the mean of the members' probabilities."""
        inputs, labels = data
        scores = self.predict(apply, inputs).scores(np.asarray(labels))
        return {f"{name}_loss": np.asarray(scores.nll), f"{name}_accuracy": np.asarray(scores.accuracy)}


def ensemble(
    init: Callable[..., State], update: Callable[..., Any], num_members: int, *, mesh: Mesh | None = None, seed: int = 0
) -> Ensemble:
    """Train many networks side by side with the code of one.

    Member `k` is, step for step, the network that would be trained alone from the key `c = fold_in(key(seed), k)`:
    `init` is given `c`, and `update` at step `n` the key `fold_in(fold_in(c, 2**32 - 2), n)`.

    Args:
        init: `init(key)` makes the state of one network: parameters, the optimiser's state, whatever is trained.
        update: `update(state, batch)` or `update(state, batch, key)` makes one step of one network and returns the new
            state and a dict of scalars that it measured. `phx.ensembles.learner` makes both from a network and an
            optimiser of optax.
        num_members: number of members, whatever the number of devices.
        mesh: the devices, from `phx.make_mesh`: members are sharded over `chain`, and the rows of each member's batches
            over `data`; by default all devices are along `chain`, on a CPU one for each core.
        seed: a whole number.

    Returns:
        The ensemble, before its first step.

    Raises:
        TypeError: when `init` or `update` is not a function of these arguments, or returns something else; of `update`
            at the first step.
        ValueError: when `num_members` is not a whole number of at least 1, or the mesh has devices off its `chain` and
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
    placement = Placement.of(check_integer("phx.ensemble", "num_members", num_members), mesh)
    return Ensemble(Members(init, update, placement, seed))
