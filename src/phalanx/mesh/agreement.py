"""Comparison of processes that must make the same call: what differs is named, in all of them, before it does harm.

Words are exchanged through the coordination service. Devices could not exchange them: where shapes or programs differ,
they would wait for one another for ever.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping

import jax

from phalanx.mesh.compatibility.shared_store import SharedStore
from phalanx.mesh.failure import ENDED

CONTENT, ROWS = "the content of ", "rows "
"""Prefixes of the names of checksums. Checksums of rows are compared among the processes that hold them."""

SHOWN = 60
"""Length up to which a message shows values."""

CALL = "the call"
"""Name of the call itself, which comes before all that belongs to it."""

WAIT = 2.0
"""Seconds after which a process looks for the others again; those that fail end this one meanwhile."""

_calls = itertools.count()


def check_same(call: str, items: Callable[[], Mapping[str, str]] = dict) -> None:
    """Raise in every process if they differ, or make other calls; no effect, and no cost, in a single process.

    All processes must call it at the same places.

    Args:
        call: the user's call, for the message.
        items: returns what must be equal, by name: words, or checksums.

    Raises:
        RuntimeError: when another process has ended, which this one would wait for.
        ValueError: when something differs. The message names it, and the processes.
    """
    store = SharedStore.joined()
    if store is None or jax.process_count() == 1:
        return
    folder, number = f"call-{next(_calls)}", jax.process_index()
    store.set(f"{folder}/{number}", json.dumps({CALL: call, **items()}))
    if number == 0:
        found = [json.loads(_await(store, f"{folder}/{other}", call)) for other in range(jax.process_count())]
        store.set(f"{folder}/verdict", differences(found))
    if words := _await(store, f"{folder}/verdict", call):
        raise ValueError(
            f"{call}: the processes must all make the same call, and they differ: {words}. Give each the same script, "
            f"arguments, data and versions; data of which each process has its own rows belong into phx.shard."
        )


def differences(found: list[dict[str, str]]) -> str:
    """Return in words what differs between processes, given the items of each; empty if they are equal."""
    if len({items.get(CALL) for items in found}) > 1:  # all else follows from it
        found = [{CALL: items[CALL]} for items in found]
    said = []
    for name in dict.fromkeys(itertools.chain(*found)):
        values = {
            number: items.get(name, "not given")
            for number, items in enumerate(found)
            if name in items or not name.startswith(ROWS)
        }
        if len(set(values.values())) == 1:
            continue
        first = next(iter(values.values()))
        others = [number for number, value in values.items() if value != first]
        if name.startswith((CONTENT, ROWS)) or max(map(len, values.values())) > SHOWN:
            said.append(f"{name} differs in process {', '.join(map(str, others))}")
        else:
            by_value = {value: [str(n) for n in values if values[n] == value] for value in values.values()}
            shown = (f"{value} in process {', '.join(numbers)}" for value, numbers in by_value.items())
            said.append(f"{name} is {' and '.join(shown)}")
    return "; ".join(said)


def _await(store: SharedStore, key: str, call: str) -> str:
    while (value := store.get(key, WAIT)) is None:
        if ended := sorted(store.under(ENDED), key=int):
            raise RuntimeError(
                f"{call}: process {', '.join(ended)} has ended, and all processes must make this call together. Make "
                f"it in each; one of them may print or write its result."
            )
    return value
