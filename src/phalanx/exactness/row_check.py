"""Numeric test on the user's rows: sums of the devices' shares against the whole, in value and gradient.

Terms that are not proved to add up are evaluated both ways, in double precision on the host, at a few positions. A
difference beyond rounding is an error. Rounding is measured by the change of the result when the position changes in
its last digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct

from phalanx.exactness.row_sample import RowSample, fraction, samples
from phalanx.exactness.whole_and_shares import Differs, Position, TooLarge, Unproved, WholeAndShares
from phalanx.inputs.arguments import Arguments
from phalanx.programs.shares import Latent

LARGEST = 1 << 22
"""Most numbers in data and position together; a second attempt has one 64th of them."""

RADII = (2.0, 0.5, 0.1, 0.01, 0.0)
"""Radii of random positions, tried in order until the log density is finite."""

POSITIONS = 2
"""Number of random positions."""


@dataclass
class RowCheck(Unproved):
    """Numeric test of the share rule: evaluates a program in the whole and as shares of devices."""

    _compiled: dict[Any, WholeAndShares] = field(default_factory=dict, repr=False)

    def compare(self, arguments: Arguments, positions: Sequence[Position] = ()) -> tuple[int, dict[str, str]]:
        """Compare at `positions`, whole and unpadded, or at random ones.

        Returns:
            The number of rows in the test, and the reason for each name that could not be checked.

        Raises:
            ValueError: naming the variable, when shares and whole differ.
        """
        if not self.terms and not self.others:
            return 0, {}
        host, why = jax.local_devices(backend="cpu")[0], ""
        for x64 in (True, False):
            for most in (LARGEST, LARGEST // 64):
                try:
                    with jax.enable_x64(x64), jax.default_device(host), jax.default_matmul_precision("float32"):
                        return self._compare(arguments, positions, most, x64)
                except Differs as found:
                    raise ValueError(str(found)) from None
                except TooLarge as error:
                    why = str(error)
                except Exception as error:  # a model that runs only with all rows, or in single precision
                    why = why or f"it does not run on the host: {(str(error).splitlines() or [repr(error)])[0][:200]}"
        return 0, dict.fromkeys(self.names, why)

    def _compare(
        self, arguments: Arguments, positions: Sequence[Position], most: int, x64: bool
    ) -> tuple[int, dict[str, str]]:
        shapes = {latent.name: _whole_shape(latent) for latent in self.shares.latents}
        share = fraction(arguments, shapes, self.shardings, most)
        if share <= 0:
            raise TooLarge(f"data and variables that are replicated have more than {most:,} numbers")
        unseen, rows, unfollowed = set(self.names), 0, ""
        for sample in samples(arguments, list(self.shardings.values()), self.sizes, share):
            both = self._both(arguments, sample, x64)
            arrays = [_wide(sample.take(a, s), x64) for a, s in zip(arguments.arrays, arguments.shardings, strict=True)]
            given = [{n: _wide(sample.take(leaf, self.shardings[n]), x64) for n, leaf in p.items()} for p in positions]
            if given:
                unseen -= both.compare_each(given, arrays)
            for number in range(0 if given else POSITIONS):
                for position in (both.position(number, radius) for radius in RADII):
                    if seen := both.compare(position, arrays):
                        unfollowed = unfollowed or both.compare_branches(position, arrays)
                        unseen -= seen
                        break
            rows = max(rows, sample.count)
        found = dict.fromkeys(self.names if unfollowed else (), unfollowed)
        return rows, found | dict.fromkeys(sorted(unseen), "it is not finite at any position that was tried")

    def _both(self, arguments: Arguments, sample: RowSample, x64: bool) -> WholeAndShares:
        shardings = tuple(sample.sharding(s) for s in arguments.shardings)
        key = shardings, arguments.layout, tuple((a.shape, str(a.dtype)) for a in arguments.arrays), x64
        if key not in self._compiled:
            self._compiled[key] = WholeAndShares.of(self, arguments, sample, shardings)
        return self._compiled[key]


def _whole_shape(latent: Latent) -> ShapeDtypeStruct:
    shape = latent.unconstrained_shape
    return jax.ShapeDtypeStruct((latent.sharding.rows, *shape[1:]) if latent.sharding.axes else shape, np.float32)


def _wide(values: np.ndarray, x64: bool) -> np.ndarray:
    return values.astype(np.float64 if x64 else np.float32) if jnp.issubdtype(values.dtype, jnp.floating) else values
