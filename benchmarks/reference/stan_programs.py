"""Stan's programs and their data, for `run_stan.py` and `run_stanli.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

FLAT = ("earnings", "mesquite", "nes")


def program(name: str, path: str) -> tuple[str, dict[str, Any]]:
    """Return the code of a model, and its data from a file of arrays."""
    data = dict(np.load(path))
    data["N"] = len(data["y"])
    for matrix in {"x", "before"} & set(data):
        if data[matrix].ndim == 2:
            data["D"] = data[matrix].shape[1]
    file = Path(__file__).parent / "stan" / f"{'flat_regression' if name in FLAT else name}.stan"
    return file.read_text(), {key: x.tolist() if isinstance(x, np.ndarray) else x for key, x in data.items()}
