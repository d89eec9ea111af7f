"""Something wrong with a run, in words: what it is about, what was found, what to try."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """Something wrong with a run.

    Attributes:
        topic: what it is about in a word or two, e.g. `high R-hat`.
        problem: what was found, in a sentence.
        advice: what to try.
        grade: "not good" where the draws should not be used because of it, "usable" where they can be with it in mind.
    """

    topic: str
    problem: str
    advice: str
    grade: str = "not good"

    def __str__(self) -> str:
        return f"{self.problem}\n  Try {self.advice}."
