"""What is known of each posterior, where it is stored, and how draws are held against it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.datasets.folder import find_folder
from phalanx.diagnostics import ess, mcse, rhat

HERE = Path(__file__).parent / "stored"
ORIGIN = "https://github.com/stan-dev/posteriordb"

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Entry:
    """A posterior of the database.

    Attributes:
        reference: its name there, which is also the stem of its file.
        program: the model.
        prepare: from the stored data to the program's arguments.
        names: the variables, latent or deterministic, that the reference knows; element i of a vector `x` is `x[i+1]`.
    """

    reference: str
    program: Callable[..., None]
    prepare: Callable[[dict[str, Any]], Arrays]
    names: tuple[str, ...]

    def data(self) -> Arrays:
        """The program's arguments."""
        return self.prepare(stored(self.reference)["data"])


@dataclass(frozen=True)
class Agreement:
    """How the draws of a run compare with the reference, parameter by parameter.

    Attributes:
        names: of the parameters, as in the reference.
        z: difference of the means, in combined Monte-Carlo standard errors.
        sd_error: relative error of the standard deviation.
        r_hat, ess: of the draws; bulk effective sample size.
    """

    names: list[str]
    z: np.ndarray
    sd_error: np.ndarray
    r_hat: np.ndarray
    ess: np.ndarray


def compare(entry: Entry, draws: Mapping[str, np.ndarray]) -> Agreement:
    """Hold draws, of shape (chain, draw, ...), against the reference of an entry."""
    columns = {
        name if values.ndim == 2 else f"{name}[{i + 1}]": column
        for name, values in ((name, np.asarray(draws[name], np.float64)) for name in entry.names)
        for i, column in enumerate(np.moveaxis(values.reshape(*values.shape[:2], -1), -1, 0))
    }
    reference = stored(entry.reference)["reference"]
    mean, sd, error = (np.array([reference[name][key] for name in columns]) for key in ("mean", "sd", "mcse"))
    table = np.stack(list(columns.values()), axis=-1)
    return Agreement(
        names=list(columns),
        z=(table.mean((0, 1)) - mean) / np.hypot(mcse(table), error),
        sd_error=table.std((0, 1)) / sd - 1,
        r_hat=rhat(table),
        ess=ess(table),
    )


def stored(name: str) -> dict[str, Any]:
    """The stored data and reference of a posterior: the small ones lie here, the others in a folder of data files.

    Raises:
        FileNotFoundError: when the folder or the file is not there.
    """
    here = HERE / f"{name}.json"
    if here.exists():
        return json.loads(here.read_text())
    path = find_folder("posteriordb", None, ORIGIN) / f"{name}.json.gz"
    return json.loads(gzip.decompress(path.read_bytes()))


def columns(*columns: Any) -> np.ndarray:
    """Columns side by side, as the predictors of a regression; a number is a constant column."""
    return np.stack(np.broadcast_arrays(*(np.asarray(column, np.float64) for column in columns)), axis=-1)
