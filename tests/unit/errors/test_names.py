"""Hints for names that do not exist."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors.names import UnknownVariable, hint

WORDS = st.lists(st.text("abcdefgh_", min_size=4, max_size=9), min_size=1, max_size=3, unique_by=str.lower)


@pytest.mark.parametrize(
    ("wrong", "known", "near"),
    [
        ("tua", ["mu", "tau"], " Did you mean 'tau'?"),
        ("Sigma", ["mu", "sigma"], " Did you mean 'sigma'?"),
        ("w", ["weights", "noise"], " Did you mean 'weights'?"),
        ("w[east]", ["w", "noise"], " Did you mean 'w'?"),
        ("x", [" x ", "price"], " Did you mean ' x '?"),
        (["slop", "nois"], ["slope", "noise"], " Did you mean 'slope' or 'noise'?"),
        ("aa_", ["a_a_"], " Did you mean 'a_a_'?"),
        ("zzz", ["mu", "tau"], ""),
        ("", ["mu"], ""),
    ],
)
def test_near_names(wrong, known, near):
    assert hint(wrong, known) == near


@given(WORDS, st.data())
def test_a_letter_that_was_left_out(known, data):
    name = data.draw(st.sampled_from(known))
    at = data.draw(st.integers(0, len(name) - 1))
    assert repr(name) in hint(name[:at] + name[at + 1 :], known)


def test_names_that_were_not_kept_are_named():
    kept = " The run did not keep its draws: run it with keep=None, or name it in keep=."
    assert hint("theta", ["mu"], ["theta"]) == f" The model has 'theta'.{kept}"
    assert hint("tehta", ["mu"], ["theta"]) == f" Did you mean 'theta'?{kept}"
    assert hint("thet", ["theta_0"], ["theta_1"]) == " Did you mean 'theta_1' or 'theta_0'?"
    many = hint(["a", "b"], ["mu"], ["a", "b"])
    assert many.startswith(" The model has 'a' and 'b'.") and "their draws" in many and "name them" in many


def test_the_error_is_of_both_kinds_and_reads_as_it_was_written():
    error = UnknownVariable("no 'x'")
    assert isinstance(error, KeyError) and isinstance(error, ValueError) and str(error) == "no 'x'"
