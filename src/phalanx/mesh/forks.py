"""Refusal of JAX in a forked process, which has no threads of JAX: its first operation would wait for ever."""

from __future__ import annotations

import os

from phalanx.mesh.compatibility.jax_internals import HAS_STARTED, find

_forked: list[int] = []
"""Number of this process, if it was forked from one in which JAX had started."""


def refuse_fork() -> None:
    """Raise in a process that was forked after JAX had started.

    Raises:
        RuntimeError: with the ways to start a process that has a JAX of its own.
    """
    if _forked:
        raise RuntimeError(
            "This process was forked from one in which JAX had started, and JAX does not work in it: its first "
            "operation would wait for ever. Start processes by multiprocessing.get_context('spawn') or 'forkserver', "
            "by joblib's default backend, or by concurrent.futures.ProcessPoolExecutor(mp_context=...)."
        )


def _note_fork() -> None:
    has_started = find(HAS_STARTED)
    if has_started is not None and has_started():
        _forked.append(os.getpid())


os.register_at_fork(after_in_child=_note_fork)
