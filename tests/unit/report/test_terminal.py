"""A run on a terminal: few rows, the worst ones, none hidden without a word."""

from __future__ import annotations

import numpy as np
from tests.unit.report.posteriors import make_posterior

from phalanx.report import print_run


def test_a_small_table_is_printed_whole(capsys):
    print_run(make_posterior(variables={"w": np.random.default_rng(0).normal(size=(4, 100, 7))}))
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:9]] == ["log_density", *(f"w[{i}]" for i in range(7))]
    assert "more rows" not in out
    assert "1.5 s compiling, 70.0 s warm-up, 12.0 s sampling; 44,000 gradients, 0 divergences" in out


def test_of_a_large_one_the_worst_rows(capsys):
    draws = np.random.default_rng(0).normal(size=(4, 100, 30))
    draws[0, :, 17] += 5
    print_run(make_posterior(variables={"v": draws}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("log_density") and lines[2].startswith("v[17]")
    assert "(23 more rows; these are the log density and the highest R-hats)" in lines
