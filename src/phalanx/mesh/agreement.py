"""Exchange of short texts between processes, and a check that all make the same call.

Texts go through the coordination service. Devices could not exchange them: where shapes or programs differ, they would
wait for one another for ever, and threads other than the main one must not use them.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping

import jax

from phalanx.mesh.compatibility.shared_store import SharedStore
from phalanx.mesh.failure import ENDED, FAILED
from phalanx.mesh.forks import refuse_fork

CONTENT, ROWS = "the content of ", "rows "
"""Prefixes of the names of checksums. Checksums of rows are compared among the processes that hold them."""

SHOWN = 60
"""Length up to which a message shows values."""

CALL = "the call"
"""Name of the call itself, which comes before all that belongs to it."""

WAIT = 2.0
"""Seconds after which a process looks for the others again; those that fail end this one meanwhile."""

PAUSE = 0.02
"""Seconds between two reads of the words that other processes leave."""

_calls = itertools.count()


def check_same(call: str, items: Callable[[], Mapping[str, str]] = dict) -> None:
    """Raise in every process if they differ, or make other calls; no effect, and no cost, in a single process.

    All processes must call it at the same places.

    Args:
        call: the user's call, for the message.
        items: returns what must be equal, by name: words, or checksums.

    Raises:
        RuntimeError: when another process has ended, which this one would wait for, or this one was forked after JAX
            had started.
        ValueError: when something differs. The message names it, and the processes.
    """
    refuse_fork()
    store = SharedStore.joined()
    if store is None or jax.process_count() == 1:
        return
    folder = f"call-{next(_calls)}"
    number = jax.process_index()
    store.set(f"{folder}/{number}", json.dumps({CALL: call, **items()}))
    if number == 0:
        items_of_all = [json.loads(_await(store, f"{folder}/{other}", call)) for other in range(jax.process_count())]
        store.set(f"{folder}/verdict", differences(items_of_all))
    if message := _await(store, f"{folder}/verdict", call):
        raise ValueError(
            f"{call}: the processes must all make the same call, and they differ: {message}. Give each the same "
            f"script, arguments, data and versions; data of which each process has its own rows belong into phx.shard."
        )


class SharedMessages:
    """Words that processes leave for one another, also in threads beside the devices' work.

    All processes must make their instances in the same order.

    Args:
        title: what they are about, for messages.
    """

    def __init__(self, title: str):
        self._called = title
        self._own = dict[str, str]()
        self._store = SharedStore.joined() if jax.process_count() > 1 else None
        if self._store is None and jax.process_count() > 1:
            raise RuntimeError(f"{title}: this release of JAX has no store of words that several processes share.")
        self._folder = "" if self._store is None else f"words-{next(_calls)}"

    def leave(self, topic: str, message: str) -> None:
        """Leave words on a topic, in place of earlier ones."""
        self._own[topic] = message
        if self._store is not None:
            self._store.set(f"{self._folder}/{topic}/{jax.process_index()}", message)

    def left(self, topic: str) -> dict[int, str]:
        """Return the words of each process that has left some on a topic."""
        if self._store is None:
            return {0: self._own[topic]} if topic in self._own else {}
        return {int(number): message for number, message in self._store.under(f"{self._folder}/{topic}").items()}

    def awaited(
        self, topic: str, enough: Callable[[str], bool] = lambda message: True, of: Iterable[int] | None = None
    ) -> list[str]:
        """Wait for words on a topic that are `enough`, from all processes or those in `of`, and return them.

        Raises:
            OSError: when another process has reported a failure.
            RuntimeError: when another process has ended.
        """
        numbers = range(jax.process_count()) if of is None else list(of)
        while True:
            messages = self.left(topic)
            if all(number in messages and enough(messages[number]) for number in numbers):
                return [messages[number] for number in numbers]
            if failures := self.left(FAILED):
                number, message = next(iter(failures.items()))
                raise OSError(f"process {number}: {message}")
            if self._store is not None and (numbers_of_ended := sorted(self._store.under(ENDED), key=int)):
                raise RuntimeError(f"{self._called}: process {', '.join(numbers_of_ended)} has ended.")
            time.sleep(PAUSE)

    def fail(self, error: BaseException) -> None:
        """Report a failure, at which processes that wait for this one raise."""
        self.leave(FAILED, str(error) or type(error).__name__)

    def forget(self, topic: str) -> None:
        """Delete the words of all processes on a topic."""
        self._own.pop(topic, None)
        if self._store is not None:
            self._store.delete(f"{self._folder}/{topic}")


def differences(items_of_all: list[dict[str, str]]) -> str:
    """Return in words what differs between processes, given the items of each; empty if they are equal."""
    if len({items.get(CALL) for items in items_of_all}) > 1:  # all else follows from it
        items_of_all = [{CALL: items[CALL]} for items in items_of_all]
    differences_in_words = []
    for name in dict.fromkeys(itertools.chain(*items_of_all)):
        values = {
            number: items.get(name, "not given")
            for number, items in enumerate(items_of_all)
            if name in items or not name.startswith(ROWS)
        }
        if len(set(values.values())) == 1:
            continue
        first = next(iter(values.values()))
        others = [number for number, value in values.items() if value != first]
        if name.startswith((CONTENT, ROWS)) or max(map(len, values.values())) > SHOWN:
            differences_in_words.append(f"{name} differs in process {', '.join(map(str, others))}")
        else:
            by_value = {value: [str(n) for n in values if values[n] == value] for value in values.values()}
            texts = (f"{value} in process {', '.join(numbers)}" for value, numbers in by_value.items())
            differences_in_words.append(f"{name} is {' and '.join(texts)}")
    return "; ".join(differences_in_words)


def _await(store: SharedStore, key: str, call: str) -> str:
    while (value := store.get(key, WAIT)) is None:
        if numbers_of_ended := sorted(store.under(ENDED), key=int):
            raise RuntimeError(
                f"{call}: process {', '.join(numbers_of_ended)} has ended, and all processes must make this call "
                f"together. Make it in each; one of them may print or write its result."
            )
    return value
