"""Is the share rule right for this program? Proved where it can be, else tried out on the user's rows; and said."""

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
class RowsApart:
    """What is known of the share rule for a program and its data.

    Attributes:
        proved: variables whose terms and values are proved to add up over the devices.
        checked: those that were run both ways on `rows` rows of the data, and agreed.
        unchecked: those that could be neither, with the reason.
        rows: rows that were looked at.
        check: runs what is not proved both ways.
        differs: where the two ways differed at draws of a run.
    """

    proved: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    unchecked: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    check: RowCheck | None = field(default=None, repr=False, compare=False)
    differs: str = ""

    @property
    def passed(self) -> str:
        """What was found in order, in a sentence; empty where nothing is sharded, or something is not checked."""
        if self.unchecked or self.differs:
            return ""
        if self.checked:
            return (
                f"The devices' shares add up to the whole: {_names(self.checked)} tried on {self.rows:,} of your rows, "
                f"everything else proved from the program."
            )
        return "The devices' shares add up to the whole: proved from the program." if self.proved else ""

    @property
    def problem(self) -> str:
        """What could not be checked, in a sentence; empty where there is none."""
        if not self.unchecked:
            return ""
        reason = next(iter(self.unchecked.values()))
        return (
            f"Whether the devices' shares of {_names(tuple(self.unchecked))} add up to the whole could not be checked: "
            f"{reason}."
        )

    def look(self, arguments: Arguments, level: str = "warn", positions: Sequence[Any] = ()) -> RowsApart:
        """The same for these data, after running what is not proved both ways, at these positions or at random ones.

        Raises:
            ValueError: when the two ways differ; and with the level "strict", when something could not be checked.
        """
        if self.check is None or not self.check.names:
            return self
        names = self.check.names
        if level == "off":
            rows, unchecked = 0, dict.fromkeys(names, "check='off' was asked for")
        else:
            rows, unchecked = self.check.look(arguments, positions)
        found = RowsApart(self.proved, tuple(n for n in names if n not in unchecked), unchecked, rows, self.check)
        if level == "strict" and unchecked:
            raise ValueError(
                f"{found.problem} With check='strict' such a model is refused. Write it so that each row sees only "
                f"itself, do not shard these data, or accept it with check='warn'."
            )
        return found


ADVICE = "the same run on unsharded data, or on a part of them, and compare"
"""What to try where something could not be checked."""


def check_level(level: Any) -> None:
    """Refuse a level of the check that is none."""
    if level not in LEVELS:
        raise ValueError(f"check must be one of {', '.join(map(repr, LEVELS))}; got {level!r}.")


def read_rows_apart(
    program: Program, arguments: Arguments, sizes: Mapping[str, int], shares: Shares, whole: Any, local: TracedProgram
) -> RowsApart:
    """What is proved of a program, and what must be tried. Nothing where nothing is spread out."""
    if not shares.axes and not any(sharding.axes for sharding in arguments.shardings):
        return RowsApart()
    latents = {latent.name: latent.sharding for latent in shares.latents}
    groups = Groups([*arguments.shardings, *latents.values()], sizes)
    inputs = [*(latents[name] for name in sorted(local.position)), *arguments.shardings]
    kinds = dict(zip(local.outputs, read_kinds(whole.jaxpr, local.jaxpr, inputs, groups), strict=True))
    masked = () if shares.masks is None else shares.masks.outputs  # of which the share rule has the proof
    terms = tuple(
        t for t in shares.terms if t not in masked and not adds_up(kinds[t], shares.terms[t], groups)
    )  # fmt: skip
    values = {**shares.others, **latents}
    others = tuple(name for name in values if not has_rows(kinds[name], values.get(name, GLOBAL), groups))
    check = RowCheck(program, sizes, shares, terms, others)
    names = dict.fromkeys([*(name for name, _ in shares.terms), *values])
    proved = tuple(name for name in names if name not in check.names)
    return RowsApart(proved, check=check)


def _names(names: Sequence[str]) -> str:
    listed = [repr(name) for name in names]
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
