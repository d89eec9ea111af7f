"""Interface that continues a run, and its implementation for a posterior from a file, which holds only a state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from phalanx.store.pickles import LEFT_OUT


class Continuation(Protocol):
    """State of a run that can be continued."""

    def state(self) -> Any:
        """Return the state of the run."""
        ...

    def saved(self) -> Any:
        """Return the state in the form that a file can hold."""
        ...

    def contents(self) -> Mapping[str, str]:
        """Return a checksum of each data argument by name; empty if the data are no longer known."""
        ...

    def continue_run(self, posterior: Any, num_samples: int, **options: Any) -> Any:
        """Return the posterior of a longer run."""
        ...


@dataclass(frozen=True)
class FromFile:
    """State of a run read from a file, without its model."""

    run_state: Any
    checksums: Mapping[str, str] = field(default_factory=dict)

    def state(self) -> Any:
        """Return the state of the run."""
        return self.run_state

    def saved(self) -> Any:
        """Return the state of the run."""
        return self.run_state

    def contents(self) -> Mapping[str, str]:
        """Return a checksum of each data argument; empty for files of earlier releases."""
        return self.checksums

    def continue_run(self, posterior: Any, num_samples: int, **options: Any) -> Any:
        """Raise: a run cannot continue without its model."""
        raise ValueError(
            f"continue_run: this posterior {LEFT_OUT}. Compile one to continue: "
            f"phx.compile(model, data, ...).continue_run(posterior, {num_samples})."
        )
