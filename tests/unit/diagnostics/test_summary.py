import subprocess
import sys

import arviz
import numpy as np
import pytest
from scipy.stats import circmean, circstd

from phalanx.diagnostics import Finding, Verdict, summary_table

COLUMNS = ["mean", "sd", "hdi_low", "hdi_high", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat"]


@pytest.fixture
def draws():
    random = np.random.default_rng(2)
    return {
        "a": random.normal(3.0, 2.0, size=(4, 150)),
        "b": random.normal(size=(4, 150, 2)).astype(np.float32),
        "w": random.normal(size=(4, 150, 2, 2)),
        "n": random.poisson(4.0, size=(4, 150)),
    }


def test_one_row_per_element_and_the_promised_columns(draws):
    table = summary_table(draws)
    assert list(table.index) == ["a", "b[0]", "b[1]", "w[0,0]", "w[0,1]", "w[1,0]", "w[1,1]", "n"]
    assert list(table.columns) == COLUMNS
    assert table.notna().all(axis=None)


def test_it_prints_every_column_with_the_digits_that_mean_something(draws):
    header, first, *rest = repr(summary_table(draws)).splitlines()
    assert header.split() == COLUMNS and len(first.split()) == len(COLUMNS) + 1 and len(rest) == 7
    assert all(len(word.lstrip("-").replace(".", "").lstrip("0")) <= 4 for word in first.split()[1:])


def test_values_are_those_of_numpy_and_arviz(draws):
    table = summary_table(draws, prob=0.8)
    for row, values in {"b[1]": draws["b"][..., 1], "w[1,0]": draws["w"][..., 1, 0], "n": draws["n"]}.items():
        values = values.astype(np.float64)
        low, high = arviz.hdi(values.ravel(), 0.8)
        expected = {
            "mean": values.mean(),
            "sd": values.std(ddof=1),
            "hdi_low": low,
            "hdi_high": high,
            "mcse_mean": arviz.mcse(values),
            "mcse_sd": arviz.mcse(values, method="sd"),
            "ess_bulk": arviz.ess(values),
            "ess_tail": arviz.ess(values, method="tail", prob=(0.05, 0.95)),
            "r_hat": arviz.rhat(values),
        }
        np.testing.assert_allclose(table.loc[row].to_numpy(), list(expected.values()), rtol=1e-10)


def test_arviz_is_not_needed():
    script = (
        "import sys; sys.modules['arviz'] = None; import numpy as np;"
        "from phalanx.diagnostics import ebfmi, summary_table;"
        "x = np.random.default_rng(0).normal(size=(4, 50)); assert summary_table({'x': x}).notna().all(axis=None);"
        "assert np.isfinite(ebfmi(x)).all()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_names_choose_and_order(draws):
    assert list(summary_table(draws, ["n", "b"]).index) == ["n", "b[0]", "b[1]"]
    assert list(summary_table(draws, "a").index) == ["a"]


@pytest.mark.parametrize("shape", [(1, 100), (4, 3), (2, 1), (1, 1), (300, 5)])
def test_any_number_of_chains_and_draws_has_a_mean(shape):
    table = summary_table({"x": np.random.default_rng(0).normal(size=shape)})
    assert np.isfinite(table.loc["x", "mean"])


def test_constant_and_infinite_variables_do_not_warn():
    ones = np.ones((4, 50))
    table = summary_table({"c": ones, "inf": ones * np.inf, "both": ones * np.array([1, 1, -1, -1])[:, None] * np.inf})
    assert table.loc["c", ["mean", "sd", "hdi_low", "hdi_high"]].tolist() == [1, 0, 1, 1]
    assert table[["ess_bulk", "r_hat"]].isna().to_numpy().all()


def test_a_mean_of_float32_draws_is_accumulated_in_float64():
    draws = np.full((4, 50_000), 16_777_217.0, dtype=np.float32)
    assert summary_table({"x": draws}).loc["x", "mean"] == float(np.float32(16_777_217.0))


def test_a_variable_without_elements_has_no_rows(draws):
    assert list(summary_table({"none": np.zeros((4, 150, 0)), "a": draws["a"]}).index) == ["a"]


def test_an_unknown_name_is_an_error_that_lists_the_known(draws):
    with pytest.raises(
        ValueError, match=r"^summary: there is no variable 'c' among the draws; they are: 'a', 'b', 'w', 'n'\.$"
    ):
        summary_table(draws, ["c"])


def test_no_draws_and_no_variables_are_errors():
    with pytest.raises(ValueError, match=r"^x: there are no draws to summarise: 4 chains of 0 draws\.$"):
        summary_table({"x": np.zeros((4, 0, 2))})
    with pytest.raises(ValueError, match=r"^summary: there are no variables to summarise; keep at least one"):
        summary_table({})


def test_a_share_out_of_range_is_an_error(draws):
    with pytest.raises(ValueError, match=r"^summary: prob must be above 0 and below 1; got 94\.$"):
        summary_table(draws, prob=94)


def test_the_verdict_is_printed_under_the_whole_table_and_under_no_part(draws):
    table = summary_table(draws)
    rows = repr(table)
    table.verdict = Verdict(False, "Not good to use yet: x<y.", (Finding("x<y", "It is bad.", "harder"),))
    assert repr(table) == f"{rows}\n\nNot good to use yet: x<y.\n- It is bad.\n  Try harder."
    html = table._repr_html_()
    assert html is not None and "<pre>Not good to use yet: x&lt;y." in html
    for part in (table.head(3), table[["mean"]], table.sort_values("r_hat"), table.copy(), table.loc[["a"]]):
        assert part.verdict is None
        shown = part._repr_html_()
        assert shown is not None and "Not good" not in repr(part) + shown


def test_worst_of_many_rows_are_printed_and_a_derived_table_keeps_its_order():
    draws = np.random.default_rng(0).normal(size=(4, 50, 41))
    draws[0, :, 17] += 5
    table = summary_table({"v": draws})
    lines = repr(table).splitlines()
    assert len(table) == 41 and len(lines) == 42 and lines[1].startswith("v[17]")
    assert lines[-1].startswith("(1 more row; these 40 have the highest R-hat")
    assert table._repr_html_().count("<th>v[") == 40 and "(1 more row;" in table._repr_html_()
    assert len(repr(summary_table({"v": draws[..., :40]})).splitlines()) == 41
    by_mean = table.sort_values("mean")
    assert [line.split()[0] for line in repr(by_mean).splitlines()[1:]] == list(by_mean.index)


def test_rows_are_called_by_labels_where_these_fit():
    draws = {"w": np.random.default_rng(0).normal(size=(2, 20, 2, 2)), "b": np.zeros((2, 20, 2))}
    labels = {"w": (("ADAMS", "ST LOUIS"), None), "b": (("one",),), "gone": (("x",),)}
    rows = ["w[ADAMS,0]", "w[ADAMS,1]", "w[ST LOUIS,0]", "w[ST LOUIS,1]", "b[0]", "b[1]"]
    assert list(summary_table(draws, labels=labels).index) == rows


def test_angles_have_directional_statistics():
    random = np.random.default_rng(3)
    angles = random.vonmises([3.0, -1.0], [4.0, 50.0], size=(4, 500, 2))
    table = summary_table({"phi": angles}, angles=["phi"])
    flat, turn = angles.reshape(-1, 2), 2 * np.pi
    difference = table["mean"].to_numpy() - circmean(flat, turn, axis=0)
    np.testing.assert_allclose(np.exp(1j * difference), 1.0, atol=1e-12)
    np.testing.assert_allclose(table["sd"], circstd(flat, turn, axis=0), rtol=1e-12)
    np.testing.assert_allclose(table.loc["phi[1]", "mcse_mean"], np.std(angles[..., 1]) / np.sqrt(2000), rtol=0.15)
    assert table["hdi_low"].iloc[0] > table["hdi_high"].iloc[0]  # across pi
    assert table["r_hat"].to_numpy().max() < 1.01 and table[["ess_bulk", "ess_tail"]].to_numpy().min() > 1000


def test_the_statistics_of_angles_do_not_depend_on_the_place_of_zero():
    angles = np.random.default_rng(4).vonmises(0.0, 8.0, size=(4, 200))
    turned = (angles + 3.0 + np.pi) % (2 * np.pi) - np.pi
    table = summary_table({"phi": angles, "psi": turned}, angles=["phi", "psi"])
    places, others = ["mean", "hdi_low", "hdi_high"], [*COLUMNS[4:], "sd"]
    np.testing.assert_allclose(table.loc["psi", others], table.loc["phi", others], rtol=1e-9)
    ends = np.exp(1j * (table.loc["psi", places] - table.loc["phi", places]).to_numpy(float))
    np.testing.assert_allclose(ends, np.exp(3j), rtol=1e-9)
    apart = summary_table({"phi": np.array([3.0, -3.0, 3.1, -3.1])[:, None] + 0.02 * angles}, angles=["phi"])
    assert apart["r_hat"].item() > 1.5  # chains that do not agree


def test_an_angle_that_stands_still_has_no_r_hat():
    table = summary_table({"phi": np.full((4, 100), 3.0)}, angles=["phi"])
    assert table.loc["phi", "mean"] == pytest.approx(3.0) and table.loc["phi", "sd"] < 1e-6
    assert np.isnan(table[["r_hat", "ess_bulk"]].to_numpy()).all()
