"""Optional dependencies: imported where they are needed, with the command that installs them when they are missing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

_PICTURES = ("arviz>=0.20", "jinja2>=3.1", "matplotlib>=3.8")

DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "arviz": _PICTURES,
    "blackjax": ("blackjax>=1.3",),
    "equinox": ("equinox>=0.13",),
    "flax": ("flax>=0.12",),
    "h5netcdf": ("h5netcdf",),
    "jinja2": _PICTURES,
    "matplotlib": _PICTURES,
    "optax": ("optax>=0.2.4",),
    "orbax": ("orbax-checkpoint>=0.11",),
    "sklearn": ("scikit-learn>=1.5",),
    "zarr": ("zarr>=3.1.6",),
    "xarray": _PICTURES,  # ArviZ brings it
}
"""By the name that is imported, the distributions to install, as `pyproject.toml` requires them."""


def require(module: str) -> Any:
    """Import an optional module, or raise an error with the command that installs it.

    Args:
        module: the module's full name, e.g. `"matplotlib.figure"`.

    Returns:
        The module.

    Raises:
        ImportError: when the package is not installed. An installed package that fails to import raises its own error.

    Example:
        >>> from phalanx.extras import require
        >>> require("json").dumps([1])
        '[1]'
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        message = f"{package} is needed here and is not installed: {install_command(package)}"
        raise ImportError(message, name=package) from error


def is_installed(package: str) -> bool:
    """Return whether an optional package, given by the name that is imported, is there."""
    return find_spec(package) is not None


def install_command(*packages: str) -> str:
    """Return the shell command that installs optional packages, given the names that are imported."""
    requirements = dict.fromkeys(name for package in packages for name in DISTRIBUTIONS.get(package, (package,)))
    return " ".join(["pip install", *(f'"{name}"' if ">" in name else name for name in requirements)])
