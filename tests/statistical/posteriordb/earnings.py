"""Log earnings on height and sex, with an interaction; heights in inches, as they were measured."""

from __future__ import annotations

import numpy as np
from tests.statistical.posteriordb.linear import regression
from tests.statistical.posteriordb.reference import Entry, columns


def prepare(data):
    height, male = (np.asarray(data[name]) for name in ("height", "male"))
    return {"x": columns(1, height, male, height * male), "y": np.log(data["earn"])}


entry = Entry("earnings-logearn_interaction", regression, prepare, ("beta", "sigma"))
