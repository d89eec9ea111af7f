"""A run on a terminal: few rows, the worst ones, none hidden without a word."""

from __future__ import annotations

import numpy as np
from tests.unit.report.posteriors import make_posterior, with_divergences

from phalanx.report import print_run


def test_a_small_table_is_printed_whole(capsys):
    print_run(make_posterior(variables={"w": np.random.default_rng(0).normal(size=(4, 100, 40))}))
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:42]] == ["log_density", *(f"w[{i}]" for i in range(40))]
    assert "more rows" not in out
    assert "1.5 s compiling, 70.0 s warm-up, 12.0 s sampling; 44,000 gradients, 0 divergences" in out


def test_large_table_shows_the_worst_rows(capsys):
    draws = np.random.default_rng(0).normal(size=(4, 100, 70))
    draws[0, :, 17] += 5
    print_run(make_posterior(variables={"v": draws}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("log_density") and lines[2].startswith("v[17]")
    assert any(line.startswith("(30 more rows; these 40 have the highest R-hat") for line in lines)


def test_one_is_one(capsys):
    print_run(with_divergences(make_posterior(), 1))
    assert "1 divergence\n" in capsys.readouterr().out
