"""Finding of a check: one problem of a run, in words, with its grade and an advice."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """Problem of a run, with its grade and an advice.

    Attributes:
        topic: a word or two, e.g. `high R-hat`.
        problem: a sentence.
        advice: a remedy, as the object of "Try".
        grade: "not good" if it forbids using the draws, "usable" if they can be used with it in mind.

    Example:
        >>> from phalanx.diagnostics import Finding
        >>> print(Finding("few draws", "There are 10 draws.", "a larger num_samples"))
        There are 10 draws.
          Try a larger num_samples.
    """

    topic: str
    problem: str
    advice: str
    grade: str = "not good"

    def __str__(self) -> str:
        return f"{self.problem}\n  Try {self.advice}."
