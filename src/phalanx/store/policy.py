"""Policy of saves: the folder of a run or a training, the time between its saves, and the saves that are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

SECONDS = 10.0
"""Seconds between two saves by default."""


@dataclass(frozen=True)
class SavePolicy:
    """Folder of saves and the times at which they are made; see `phx.checkpoint`."""

    folder: Path
    seconds: float = SECONDS
    every: int | None = None

    @classmethod
    def of(cls, checkpoint: SavePolicy | str | PathLike[str] | None) -> SavePolicy | None:
        """Return the policy that an argument `checkpoint=` means; None without one.

        Raises:
            TypeError: when it is neither a folder nor a policy.
        """
        if checkpoint is None or isinstance(checkpoint, SavePolicy):
            return checkpoint
        if not isinstance(checkpoint, str | PathLike):
            raise TypeError(
                f"checkpoint must be a path, such as 'out/run', or phx.checkpoint('out/run', ...); got {checkpoint!r}."
            )
        return cls(Path(checkpoint))

    def passes(self, last: int, num_done: int) -> bool:
        """Return whether a save is kept after so many draws or steps, given those of the last one that is."""
        return self.every is not None and num_done // self.every > last // self.every

    def until_next(self, num_done: int) -> float:
        """Return the draws or steps up to the next save that is kept; infinity without."""
        return math.inf if self.every is None else self.every - num_done % self.every


def checkpoint(folder: str | PathLike[str], *, seconds: float = SECONDS, every: int | None = None) -> SavePolicy:
    """Make the argument `checkpoint=` of `phx.mcmc`, `phx.stream`, `phx.fit` and `ensemble.train`.

    Temporary saves are made by time; the last two are there, and the same call continues from the newest. Permanent
    saves are made by draws or steps, and stay. The manifest of a permanent save has its number in its name,
    `save-00000012-at-2000.json` after 2,000 draws, and `phx.Posterior.load` and `ensemble.restore` read the path of a
    manifest as they read a folder. A call continues from an earlier save once the manifests of later ones are deleted.

    Args:
        folder: the folder. Phalanx makes it, and refuses one that holds something else.
        seconds: seconds between two temporary saves; 0 saves after every block, `math.inf` only at the end, and at
            Ctrl-C, SIGTERM or an error.
        every: draws of each chain between two permanent saves of a run or a stream, those that `thin` keeps, each at
            the end of a block; or steps of a fit or an ensemble.

    Returns:
        The policy.

    Raises:
        TypeError: when `folder` is not a path.
        ValueError: when `seconds` is not a number of at least 0, or `every` not a whole number of at least 1.

    Example:
        >>> import phalanx as phx
        >>> phx.checkpoint("out/run", seconds=60.0, every=1000).every
        1000
    """
    if not isinstance(folder, str | PathLike):
        raise TypeError(f"checkpoint: folder must be a path, such as 'out/run'; got {folder!r}.")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0.0:
        raise ValueError(f"checkpoint: seconds must be a number of at least 0; got {seconds!r}.")
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise ValueError(f"checkpoint: every must be a whole number of at least 1, or None; got {every!r}.")
    return SavePolicy(Path(folder), float(seconds), every)
