"""Every row of a table has its own name, or the names are refused."""

import re

import pytest

from phalanx.inputs.axis_names import AxisNames
from phalanx.run.describe import distinct_rows

WORDS = {"w": (("a,b", "a"), ("c", "b,c"))}  # w[a,b,c] twice


def test_labels_found_in_data_that_lead_to_equal_rows_are_left_out():
    assert distinct_rows({"w": (2, 2), "v": (2,)}, AxisNames(labels={**WORDS, "v": (("p", "q"),)}), set()) == {
        "v": (("p", "q"),)
    }


def test_equal_rows_are_refused():
    with pytest.raises(ValueError, match=re.escape("two rows 'w[a,b,c]': of two entries of 'w'. Rename a variable")):
        distinct_rows({"w": (2, 2)}, AxisNames({"w": ("f", None)}, labels=WORDS), {"f"})
    with pytest.raises(ValueError, match=re.escape("two rows 'w[0]': of the variables ")) as caught:
        distinct_rows({"w": (3,), "w[0]": ()}, AxisNames(), set())
    assert "'w'" in str(caught.value) and "'w[0]'" in str(caught.value)
    assert distinct_rows({"w": (3,), "w[3]": ()}, AxisNames(), set()) == {}
