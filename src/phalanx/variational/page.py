"""The report of a fit."""
from __future__ import annotations
from typing import Any
def write_page(fit: Any, path: Any) -> Any:
    raise NotImplementedError
