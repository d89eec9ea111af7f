"""Hints for an unknown name: the closest names, or the way to keep a variable whose draws a run did not keep."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_NAMED = 3


class UnknownVariable(KeyError, ValueError):
    """Error for an unknown name in brackets: a `KeyError`, as for any mapping, and a `ValueError`, as for arguments."""

    def __str__(self) -> str:
        return str(self.args[0])


def hint(wrong: str | Iterable[str], existing: Iterable[str], not_kept: Iterable[str] = ()) -> str:
    """Return a sentence to append to a message about unknown names.

    Args:
        wrong: the unknown name or names.
        existing: the names that exist.
        not_kept: variables of the model whose draws the run did not keep.

    Returns:
        The sentence after a space; an empty string if no name is close.

    Example:
        >>> from phalanx.errors.names import hint
        >>> hint("tua", ["mu", "tau"])
        " Did you mean 'tau'?"
        >>> hint("theta", ["mu"], not_kept=["theta"])
        " The model has 'theta'. The run did not keep its draws: run it with keep=None, or name it in keep=."
    """
    names = [wrong] if isinstance(wrong, str) else list(wrong)
    left_out = list(not_kept)
    if known_names := [name for name in names if name in left_out]:
        return f" The model has {_list_names(known_names, ' and ')}. {_not_kept(known_names)}"
    near = list(dict.fromkeys(match for name in names for match in _near(str(name), [*existing, *left_out])))
    if not near:
        return ""
    question = f" Did you mean {_list_names(near, ' or ')}?"
    return question if set(near) - set(left_out) else f"{question} {_not_kept(near)}"


def _not_kept(names: list[str]) -> str:
    its, it = ("its", "it") if len(names) == 1 else ("their", "them")
    return f"The run did not keep {its} draws: run it with keep=None, or name {it} in keep=."


def _near(name: str, names: Iterable[str]) -> list[str]:
    """Return the names that differ by case, by a few letters, or by a missing index or ending."""
    by_lower: dict[str, str] = {}
    for other in names:
        by_lower.setdefault(str(other).strip().lower(), str(other))
    word = name.strip().lower()
    whole = [other for other in by_lower if word and (other.startswith(word) or word.startswith(f"{other}["))]
    # the search for close matches is greedy, and misses "a_a_" for "aa_"
    missed = [
        other for other in by_lower if word and any(other[:i] + other[i + 1 :] == word for i in range(len(other)))
    ]
    candidates = dict.fromkeys([*get_close_matches(word, by_lower, n=_NAMED), *whole, *missed])
    return [by_lower[other] for other in candidates][:_NAMED]


def _list_names(names: list[str], last: str) -> str:
    quoted = [repr(name) for name in names]
    return last.join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
