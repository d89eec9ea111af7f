"""Windows of a warm-up: a metric that is learned from one is used from the next on."""

from __future__ import annotations

FIRST = 10
"""Iterations of the first two windows; each later window is twice as long as the one before."""

LAST_FRACTION, LAST_LEAST = 0.15, 20
"""Fraction of the warm-up, and the fewest iterations, after the last change of the metric: for the step size alone."""


def windows(num_warmup: int, learns_metric: bool, least_last: int = LAST_LEAST) -> list[int]:
    """Return the iterations of each window; they add up to `num_warmup`.

    At the end of each but the last, a kernel that learns a metric adopts the one that its draws suggest. The windows
    double, so that early ones forget the way to the typical set quickly and the last has half of all draws. A kernel
    without a metric has two: chains on their way to the typical set need other steps than chains in it.

    Args:
        num_warmup: iterations in all.
        learns_metric: true if the kernel learns a metric.
        least_last: the fewest iterations of the last window of a kernel that learns a metric.

    Returns:
        Their lengths.
    """
    if num_warmup == 0:
        return []
    if not learns_metric:
        return [n for n in (num_warmup // 2, num_warmup - num_warmup // 2) if n]
    last = max(round(LAST_FRACTION * num_warmup), least_last)
    left, lengths = num_warmup - last, []
    while left > 0:
        length = max(FIRST, sum(lengths))
        # a remainder shorter than this window joins it
        lengths.append(length if left - length >= length else left)
        left -= lengths[-1]
    return [*lengths, num_warmup - sum(lengths)]
