"""Optional dependencies: imported where they are needed, with the command that installs them when they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def require(module: str, extra: str) -> Any:
    """Import an optional module, or say how to install it.

    Args:
        module: the module's full name, e.g. `"matplotlib.figure"`.
        extra: the extra of Phalanx that brings it, e.g. `"report"`.

    Returns:
        The module.

    Raises:
        ImportError: when the package is not installed. An installed package that fails to import raises its own error.

    Example:
        >>> from phalanx.extras import require
        >>> require("json", "report").dumps([1])
        '[1]'
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        message = f"{package} is needed here and is not installed: pip install 'phalanx[{extra}]'"
        raise ImportError(message, name=package) from error
