"""What goes on with a run: the sampler that made it, or, of a posterior from a file, nothing but its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Continuation(Protocol):
    """What can go on with a run."""

    def state(self) -> Any:
        """The run as a value."""
        ...

    def saved(self) -> Any:
        """The run as a file can hold it."""
        ...

    def contents(self) -> Mapping[str, str]:
        """A checksum of each of the data by name; empty where they are not known any more."""
        ...

    def continue_run(self, posterior: Any, num_samples: int, **options: Any) -> Any:
        """A longer run."""
        ...


@dataclass(frozen=True)
class FromFile:
    """The state of a run that was read from a file, without its model."""

    known: Any
    checksums: Mapping[str, str] = field(default_factory=dict)

    def state(self) -> Any:
        """The run as a value."""
        return self.known

    def saved(self) -> Any:
        """The same."""
        return self.known

    def contents(self) -> Mapping[str, str]:
        """A checksum of each of the data; empty in files of earlier releases."""
        return self.checksums

    def continue_run(self, posterior: Any, num_samples: int, **options: Any) -> Any:
        """Refused."""
        raise ValueError(
            "continue_run: this posterior was read from a file, which holds no model. Compile it, and go on: "
            f"phx.compile(model, data, ...).continue_run(posterior, {num_samples})."
        )
