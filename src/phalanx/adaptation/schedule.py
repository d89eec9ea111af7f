"""The windows of a warm-up: what is learned from one is used from the next on."""

from __future__ import annotations

FIRST = 10
"""Iterations of the first two windows; from there on they double."""

LAST_SHARE, LAST_LEAST = 0.15, 20
"""Share of the warm-up, and the fewest iterations, after the last change of the metric: for the step size alone."""


def windows(num_warmup: int, learns_metric: bool) -> list[int]:
    """Iterations of each window; they add up to `num_warmup`.

    At the end of each but the last, a kernel that learns a metric takes over the one its draws suggest. The windows
    double, so that early ones forget the way to the typical set quickly and the last has half of all draws. A kernel
    that learns no metric has two: chains on their way to the typical set call for other steps than chains in it.

    Args:
        num_warmup: iterations in all.
        learns_metric: whether the kernel learns a metric.

    Returns:
        Their lengths.
    """
    if num_warmup == 0:
        return []
    if not learns_metric:
        return [n for n in (num_warmup // 2, num_warmup - num_warmup // 2) if n]
    last = max(round(LAST_SHARE * num_warmup), LAST_LEAST)
    left, lengths = num_warmup - last, []
    while left > 0:
        length = max(FIRST, sum(lengths))
        # what is left over would be too short for a window of its own
        lengths.append(length if left - length >= length else left)
        left -= lengths[-1]
    return [*lengths, num_warmup - sum(lengths)]
