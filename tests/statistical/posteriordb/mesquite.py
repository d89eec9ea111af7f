"""Log weight of mesquite bushes on their volume, area, shape, height, density and group."""

from __future__ import annotations

import numpy as np
from tests.statistical.posteriordb.linear import regression
from tests.statistical.posteriordb.reference import Entry, columns


def prepare(data):
    names = ("weight", "diam1", "diam2", "canopy_height", "total_height", "density")
    weight, diam1, diam2, canopy, height, density = (np.log(data[name]) for name in names)
    area, shape = diam1 + diam2, diam1 - diam2
    return {"x": columns(1, area + canopy, area, shape, height, density, data["group"]), "y": weight}


entry = Entry("mesquite-logmesquite_logvas", regression, prepare, ("beta", "sigma"))
