"""Store of strings that all processes of a run share, in the coordination service that JAX starts in the first one.

It needs no device, so that processes can exchange words while their devices wait for one another. JAX has no public
name for it; `jax_internals.COORDINATION` is the private one.
"""

from __future__ import annotations

from typing import Any

import jax

from phalanx.mesh.compatibility.jax_internals import COORDINATION, find

PREFIX = "phalanx/"


class SharedStore:
    """Strings by key, which every process reads and writes.

    Args:
        client: JAX's client of the service.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    def joined(cls) -> SharedStore | None:
        """Return the store; None in a single process, and if this JAX lacks it."""
        client = getattr(find(COORDINATION), "client", None)
        return None if client is None else cls(client)

    @property
    def is_open(self) -> bool:
        """True until JAX leaves the other processes."""
        return getattr(find(COORDINATION), "client", None) is self._client

    def set(self, key: str, value: str) -> None:
        """Write a string; an earlier one is replaced."""
        self._client.key_value_set(PREFIX + key, value, allow_overwrite=True)

    def get(self, key: str, seconds: float) -> str | None:
        """Return a string as soon as it is written; None if it is not within so many seconds.

        Raises:
            ConnectionError: when the first process cannot be reached.
        """
        try:
            return self._client.blocking_key_value_get(PREFIX + key, int(1000 * seconds))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise ConnectionError(str(error)) from None

    def under(self, folder: str) -> dict[str, str]:
        """Return all strings whose keys begin with `folder/`, by the last part of their keys.

        Raises:
            ConnectionError: when the first process cannot be reached.
        """
        try:
            entries = self._client.key_value_dir_get(f"{PREFIX}{folder}")
        except jax.errors.JaxRuntimeError as error:
            raise ConnectionError(str(error)) from None
        return {key.rpartition("/")[2]: value for key, value in entries}

    def delete(self, folder: str) -> None:
        """Delete all strings under a folder."""
        self._client.key_value_delete(f"{PREFIX}{folder}")
