"""Collectives of a compiled program, read from its HLO: what devices send one another, and how many bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

BYTES = {"f64": 8, "s64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "s8": 1, "u8": 1, "pred": 1}
COLLECTIVE = re.compile(r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
GROUPS, COUNTED = re.compile(r"replica_groups=\{\{([\d,]+)\}"), re.compile(r"replica_groups=\[\d+,(\d+)\]")


class Collective(NamedTuple):
    """A collective operation.

    Attributes:
        kind: for example "all-reduce".
        size: bytes of its result on each device.
        group: devices that it joins.
    """

    kind: str
    size: int
    group: int

    @property
    def sent(self) -> float:
        """Return the bytes that a device sends in a ring."""
        others = self.group - 1
        part = {"all-reduce": 2 * others / self.group, "reduce-scatter": others, "collective-permute": 1}
        return self.size * part.get(self.kind, others / self.group)


def collectives(hlo: str, devices: int) -> list[Collective]:
    """Return those of a program on this many devices; an operation that names no groups joins all."""
    found = []
    for line in hlo.splitlines():
        if match := COLLECTIVE.search(line):
            written, counted = GROUPS.search(line), COUNTED.search(line)
            group = len(written[1].split(",")) if written else int(counted[1]) if counted else devices
            found.append(Collective(match[2], sum(map(_bytes, ARRAY.findall(match[1]))), group))
    return found


def by_kind(found: Iterable[Collective], measure: Callable[[Collective], float]) -> dict[str, int]:
    """Return the sum of a measure of operations, by kind."""
    totals: dict[str, float] = {}
    for one in found:
        totals[one.kind] = totals.get(one.kind, 0) + measure(one)
    return {kind: int(total) for kind, total in totals.items()}


def _bytes(array: tuple[str, str]) -> int:
    kind, sizes = array
    return BYTES[kind] * math.prod(int(size) for size in sizes.split(",") if size)
