"""Party identification in the National Election Study of 2000, on ideology, race, age group, schooling, sex, income."""

from __future__ import annotations

import numpy as np
from tests.statistical.posteriordb.linear import regression
from tests.statistical.posteriordb.reference import Entry, columns


def prepare(data):
    age = np.asarray(data["age_discrete"])
    others = (data[name] for name in ("educ1", "gender", "income"))
    x = columns(1, data["real_ideo"], data["race_adj"], age == 2, age == 3, age == 4, *others)
    return {"x": x, "y": np.asarray(data["partyid7"], np.float64)}


entry = Entry("nes2000-nes", regression, prepare, ("beta", "sigma"))
