"""Columns of a table that a model does not take are named; a misnamed outcome is refused."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import phalanx as phx

X = np.linspace(0.0, 1.0, 6)


def model(x, y=None, weight=1.0):
    slope = phx.sample("slope", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(slope * x, weight), obs=y)


def table(**more) -> pd.DataFrame:
    return pd.DataFrame({"x": X, **more})


def test_columns_are_named_in_one_line():
    named = phx.compile(model, table(y=X, id=range(6), note="a"), kernel=phx.rwmh(step_size=1.0)).notice
    assert named == "data: the model does not take 'id', 'note'."
    many = table(y=X, **{f"column {number}": X for number in range(100)})
    line = phx.compile(model, many, kernel=phx.rwmh(step_size=1.0)).notice
    assert line == "data: the model does not take 'column 0', 'column 1', 'column 2' and 97 more."


@pytest.mark.parametrize("name", ["Y", "y ", "y_", "yy"])
@pytest.mark.parametrize(
    "infer",
    [
        phx.Target,
        lambda program, data: phx.compile(program, data),
        lambda program, data: phx.compile(program, data, missing="impute"),
        lambda program, data: phx.fit(program, phx.guides.mean_field(), data, num_steps=1),
        lambda program, data: phx.maximize(program, data),
        lambda program, data: phx.smc(program, data),
    ],
    ids=["Target", "compile", "impute", "fit", "maximize", "smc"],
)
def test_a_misnamed_outcome_is_refused(name, infer):
    words = f"data: {name!r} is not used, and the model observes nothing; did you mean 'y', its argument that was not"
    with pytest.raises(ValueError, match=words):
        infer(model, table(**{name: X}))


def test_other_columns_are_no_misnamed_outcome():
    assert not phx.Target(model, table(outcome=X, year=X)).observes  # draws of the prior, as before
    assert phx.Target(model, table(y=X, Y=X, weights=X)).observes

    def two(x, y=None, z=None):
        slope = phx.sample("slope", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(slope * x, 1.0), obs=y)
        phx.sample("z", dist.Normal(slope * x, 1.0), obs=z)

    assert phx.Target(two, table(y=X, Z=X)).observes
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'Y'"):
        phx.Target(model, {"x": X, "Y": X})


def test_a_misnamed_column_of_a_file(phalanx, tmp_path):
    (tmp_path / "models.py").write_text(
        "import numpyro.distributions as dist\nimport phalanx as phx\n\n\ndef line(x, y=None):\n"
        "    slope = phx.sample('slope', dist.Normal(0.0, 5.0))\n"
        "    phx.sample('y', dist.Normal(slope * x, 0.1), obs=y)\n"
    )
    (tmp_path / "data.csv").write_text("x,Y\n1.0,2.0\n2.0,4.0\n")
    status, _, err = phalanx("sample", "models.py:line", "--data", "data.csv")
    assert status == 2 and "data: 'Y' is not used, and the model observes nothing; did you mean 'y'" in err
