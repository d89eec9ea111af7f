"""Counts as people say them."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """Write a number of things: `1 chain`, `1,000 draws`, `2 quantities`."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"
