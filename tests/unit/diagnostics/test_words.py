import numpy as np
import pytest

from phalanx.diagnostics.judging.checked_run import format_rhat
from phalanx.errors.message_text import count


@pytest.mark.parametrize(
    "number, noun, words", [(1, "chain", "1 chain"), (0, "draw", "0 draws"), (2000, "quantity", "2,000 quantities")]
)
def test_things_are_counted_as_people_say_it(number, noun, words):
    assert count(number, noun) == words


def test_rhat_of_chains_that_stand_still_is_out_of_bounds():
    assert format_rhat(1.0) == "1.000"
    assert format_rhat(np.inf) == "over 100"


@pytest.mark.parametrize(
    "value, bound, words",
    [
        (1.0096, 1.01, "1.0096"),
        (1.00996, 1.01, "1.00996"),
        (1.0104, 1.01, "1.0104"),
        (1.01, 1.01, "1.010"),
        (1.011, 1.01, "1.011"),
        (1.0136, 1.014, "1.0136"),
        (1.0100000001, 1.01, "1.01"),
        (np.nan, 1.01, "nan"),
    ],
)
def test_digits_tell_on_which_side_of_the_bound_rhat_is(value, bound, words):
    assert format_rhat(value, bound) == words
