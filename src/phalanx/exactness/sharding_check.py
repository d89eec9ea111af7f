"""Check of the share rule for one program: prove that shares sum to the whole, otherwise test numerically; report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.exactness.proof.proof import adds_up, has_rows, read_kinds
from phalanx.exactness.row_check import RowCheck
from phalanx.inputs.arguments import Arguments
from phalanx.jaxprs.sharding_state import Groups
from phalanx.language.tracing import Program
from phalanx.mesh.space import GLOBAL
from phalanx.programs.shares import Shares
from phalanx.programs.traced_program import TracedProgram

LEVELS = ("warn", "strict", "off")


@dataclass(frozen=True)
class ShardingCheck:
    """Result of the check of the share rule for a program and its data.

    Attributes:
        proved: variables whose terms and values are proved to add up over the devices.
        checked: variables whose shares agreed with the whole in a numeric test on `rows` rows of the data.
        unchecked: variables that were neither proved nor tested, each with the reason.
        rows: number of rows in the test.
        check: the numeric test of the variables that are not proved.
        differs: a message if shares and whole differed at draws of a run; else empty.
        draws_of: the chains or particles whose draws were tested, in words; empty before a run has ended.
    """

    proved: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    unchecked: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    check: RowCheck | None = field(default=None, repr=False, compare=False)
    differs: str = ""
    draws_of: str = ""

    @property
    def passed(self) -> str:
        """Sentence about a passed check; empty if no data are sharded or some variable is not checked."""
        if self.unchecked or self.differs:
            return ""
        if self.checked:
            draws = f", also at draws of {self.draws_of}" if self.draws_of else ""
            return (
                f"The devices' shares add up to the whole: {_names(self.checked)} tested on {self.rows:,} of your "
                f"rows{draws}, everything else proved from the program."
            )
        return "The devices' shares add up to the whole: proved from the program." if self.proved else ""

    @property
    def problem(self) -> str:
        """Sentence about the variables that could not be checked; empty if all were."""
        if not self.unchecked:
            return ""
        reason = next(iter(self.unchecked.values()))
        return (
            f"Phalanx could not check that the devices' shares of {_names(tuple(self.unchecked))} add up to the whole: "
            f"{reason}."
        )

    def compare(self, arguments: Arguments, level: str = "warn", positions: Sequence[Any] = ()) -> ShardingCheck:
        """Return the result for these data, after a test of what is not proved, at these or at random positions.

        Raises:
            ValueError: when shares and whole differ; with the level "strict", also when a variable cannot be checked.
        """
        if self.check is None or not self.check.names:
            return self
        names = self.check.names
        if level == "off":
            rows, unchecked = 0, dict.fromkeys(names, "check='off' was asked for")
        else:
            rows, unchecked = self.check.compare(arguments, positions)
        found = ShardingCheck(self.proved, tuple(n for n in names if n not in unchecked), unchecked, rows, self.check)
        if level == "strict" and unchecked:
            raise ValueError(
                f"{found.problem} check='strict' refuses such a model. Write it so that each row depends on itself "
                f"only, do not shard these data, or accept it with check='warn'."
            )
        return found


ADVICE = "the same run on unsharded data, or on a part of them, and compare"
"""Advice to users where a variable could not be checked."""


def check_level(level: object) -> None:
    """Raise unless `level` is a level of the check."""
    if level not in LEVELS:
        raise ValueError(f"check must be one of {', '.join(map(repr, LEVELS))}; got {level!r}.")


def read_sharding_check(
    program: Program, arguments: Arguments, sizes: Mapping[str, int], shares: Shares, whole: Any, local: TracedProgram
) -> ShardingCheck:
    """Prove the share rule for a program as far as possible; the result holds the test of the rest."""
    if not shares.axes and not any(sharding.axes for sharding in arguments.shardings):
        return ShardingCheck()
    latents = {latent.name: latent.sharding for latent in shares.latents}
    groups = Groups([*arguments.shardings, *latents.values()], sizes)
    inputs = [*(latents[name] for name in sorted(local.position)), *arguments.shardings]
    kinds = dict(zip(local.outputs, read_kinds(whole.jaxpr, local.jaxpr, inputs, groups), strict=True))
    masked = () if shares.masks is None else shares.masks.outputs  # already proved by the share rule
    terms = tuple(
        t for t in shares.terms if t not in masked and not adds_up(kinds[t], shares.terms[t], groups)
    )  # fmt: skip
    values = {**shares.others, **latents}
    others = tuple(name for name in values if not has_rows(kinds[name], values.get(name, GLOBAL), groups))
    check = RowCheck(program, sizes, shares, terms, others)
    names = dict.fromkeys([*(name for name, _ in shares.terms), *values])
    proved = tuple(name for name in names if name not in check.names)
    return ShardingCheck(proved, check=check)


def _names(names: Sequence[str]) -> str:
    listed = [repr(name) for name in names]
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
