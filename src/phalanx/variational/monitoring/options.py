"""`phx.training`: options of a long fit, which are held-out rows, a checkpoint and a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from phalanx.learning.batches import Batches
from phalanx.store.policy import SavePolicy


@dataclass(frozen=True)
class Training:
    """Options of a long fit; see `phx.training`."""

    every: int
    held_out: Mapping[str, Any] | Batches | None
    checkpoint: SavePolicy | None
    log: Path | None


def training(
    *,
    every: int = 1000,
    held_out: Mapping[str, Any] | Batches | None = None,
    checkpoint: SavePolicy | str | PathLike[str] | None = None,
    log: str | PathLike[str] | None = None,
) -> Training:
    """Make the options of a long fit, which is evaluated, logged and saved at looks, every so many steps.

    All `num_steps` are made. The fit's parameters are those of the best evaluation, or the last where no rows are held
    out.

    Args:
        every: steps from one look to the next.
        held_out: rows that the fit does not learn from, a dict of arrays like the data, or `phx.batches` of them where
            a batch is transformed. They are evaluated in batches of the fit's size; a smaller last batch is left out.
        checkpoint: as for `phx.fit`. The last state and the best parameters are saved at each look, too.
        log: a CSV file with a line for each look: steps, seconds, the loss and the held-out loss in nats per row and
            bits per dimension, rows per second.

    Returns:
        The argument `training=` of `phx.fit`.

    Raises:
        TypeError: when an argument has another type.
        ValueError: when `every` is not a whole number above zero, or `log` is a folder.

    Example:
        >>> import phalanx as phx
        >>> phx.training(every=500, log="losses.csv").every
        500
    """
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ValueError(f"training: every must be a whole number of steps, at least 1; got {every!r}.")
    if held_out is not None and not isinstance(held_out, Mapping | Batches):
        raise TypeError(
            f"training: held_out must be a dict of the model's arguments, or phx.batches of one; got "
            f"{type(held_out).__name__}."
        )
    if log is not None and not isinstance(log, str | PathLike):
        raise TypeError(f"training: log must be a path, such as 'out/losses.csv'; got {log!r}.")
    policy = SavePolicy.of(checkpoint)
    file = None if log is None else Path(log)
    if file is not None and file.is_dir():
        raise ValueError(f"training: log={str(file)!r} is a folder. Name a CSV file, which may lie in it.")
    return Training(every, held_out, policy, file)
