"""Faults of single JAX releases: those with wrong numbers are refused, the deadlock of others is avoided.

`check_jax` is called before Phalanx compiles, never at import. The faults are in the compiler and the kernels of
jaxlib, so the version of jaxlib decides.
"""

from __future__ import annotations

import re
import sys
from functools import cache

import jax
import jaxlib.version

from phalanx.mesh.compatibility.jax_internals import read_arrays_anew
from phalanx.mesh.compatibility.lapack_batches import avoid_deadlock
from phalanx.mesh.compatibility.workarounds import VARIABLE, Workaround
from phalanx.mesh.forks import refuse_fork

FAULTS = {
    ("0.10.2", "cpu"): "computes wrong sums on CPUs (https://github.com/jax-ml/jax/issues/39103)",
    ("0.11.0", "cpu"): "crashes or hangs on CPUs in sums of products (https://github.com/jax-ml/jax/issues/39257)",
}
"""Faults for which a release is refused, by version and platform."""

TESTED = {
    (3, 11): "jax==0.10.1 jaxlib==0.10.1",
    (3, 12): "jax>=0.11.2,<0.13",
}
"""Requirements of releases without these faults, by the least version of Python."""


def check_jax(platform: str | None = None) -> None:
    """Raise if the installed JAX has a known fault on a platform; install the work-arounds for all traces.

    Args:
        platform: platform of the devices in use, such as "cpu"; None means JAX's default.

    Raises:
        RuntimeError: when the release computes wrong numbers there, may deadlock and has no work-around, or this
            process was forked after JAX had started.
    """
    refuse_fork()
    _check(platform or jax.default_backend())


@cache
def _check(platform: str) -> None:
    reason = refusal(jaxlib.version.__version__, platform, sys.version_info[:2])
    if reason is not None and Workaround.REFUSED_RELEASES.is_on:
        raise RuntimeError(reason)
    avoid_deadlock(jaxlib.version.__version__)
    read_arrays_anew()


def refusal(version: str, platform: str, python: tuple[int, int]) -> str | None:
    """Return why a version of jaxlib is refused on a platform, and the way out; None if the version is fine."""
    release = re.match(r"[\d.]*\d", version)  # without suffixes such as ".dev20260617" or "+cuda13"
    fault = FAULTS.get((release.group() if release else version, platform))
    if fault is None:
        return None
    good = TESTED[max(least for least in TESTED if least <= max(python, min(TESTED)))]
    requirements = " ".join(f"'{requirement}'" for requirement in good.split())
    return (
        f"jaxlib {version} {fault}. Install another release: pip install {requirements}. To run with it nevertheless, "
        f"set the environment variable {VARIABLE}={Workaround.REFUSED_RELEASES.value}."
    )
