import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from tests.unit.report.posteriors import make_posterior, with_divergences, with_stats

from phalanx.report import save_figures, write_report
from phalanx.report.plots.style import new_figure
from phalanx.report.sections import histograms


class Page(HTMLParser):
    """Collects what a page refers to, its text, and checks that its tags are nested well."""

    VOID = ("meta", "img", "br", "link", "input", "hr")

    def __init__(self, text):
        super().__init__()
        self.open, self.references, self.tags, self.text = [], [], [], ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.text += data


def tables(text):
    """The rows and titles of all tables, as the script reads them."""
    return [json.loads(data) for data in re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)]


def report(posterior, tmp_path):
    return Page(write_report(posterior, tmp_path / "report.html").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_one_file_that_needs_nothing_beside_it(written):
    text = written.read_text(encoding="utf-8")
    page = Page(text)
    outside = [reference for reference in page.references if not reference.startswith(("#", "data:"))]
    assert not outside and "iframe" not in page.tags
    assert "http" not in text and "@import" not in text
    assert {address[1] for address in re.finditer(r"url\((.)", text)} == {"#"}  # parts of the page's own pictures
    ids = set(re.findall(r' id="([^"]*)"', text))
    assert ids >= set(re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', text)[0]) - {""}
    assert [entry.name for entry in written.parent.iterdir()] == ["report.html"]


@pytest.fixture
def no_panels(monkeypatch):
    """Without the plots of the chains, which take most of the time."""
    monkeypatch.setattr("phalanx.report.write.draw_panels", lambda posterior: {})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The report of a posterior of which twelve draws diverged."""
    return write_report(with_divergences(make_posterior(), 12), tmp_path_factory.mktemp("made") / "new" / "report.html")


def test_it_says_what_was_run_where(written):
    text = Page(written.read_text(encoding="utf-8")).text
    for words in [
        "Posterior of regression",
        "hmc(num_steps=10)",
        "chain 2 × data 1 × model 1",
        "TFRT_CPU_1",
        "float32[50,3], sharded over data",
        "phalanx 0.1.0, jax 0.10.2",
        "44,000 evaluations",
        "warm-up 1 min 10 s",
        "def regression(x):\n    return x < 3 & 4",
    ]:
        assert words in text


def test_the_log_density_leads_the_table(written):
    text = written.read_text(encoding="utf-8")
    rows = re.findall(r'<tr class="\w*"><th>(.*?)</th>', text)
    assert rows == ["log_density", "w[0,0]", "w[0,1]", "w[0,2]", "w[1,0]", "w[1,1]", "w[1,2]", "b", "n"]
    assert "The log density, and every scalar element of the variables." in text


@pytest.mark.usefixtures("no_panels")
def test_table_has_all_of_many_elements_and_the_worst_first(tmp_path):
    values = np.random.default_rng(0).normal(size=(4, 50, 50))
    values[..., 17] += 3 * np.arange(4)[:, None]
    posterior = make_posterior(draws=50, variables={"x": values})
    text = write_report(posterior, tmp_path / "report.html").read_text(encoding="utf-8")
    rows = re.findall(r'<tr class="\w*"><th>(.*?)</th>', text)
    assert rows[:2] == ["log_density", "x[17]"]
    assert len(rows) == 41  # without a script; the script shows all
    (table,) = tables(text)
    assert [name for _, name, _, _ in table["rows"][:2]] == ["log_density", "x[17]"] and len(table["rows"]) == 51
    assert table["titles"][table["sorted_by"]] == "R-hat"


@pytest.mark.usefixtures("no_panels")
def test_names_and_sources_cannot_break_the_page(tmp_path):
    posterior = make_posterior(variables={"<script>alert(1)</script>": np.random.default_rng(0).normal(size=(4, 100))})
    record = replace(posterior.record, model='<img src="x">', kernel="<b>", data={"</table>": "&"}, source="</pre><i>")
    path = write_report(replace(posterior, record=record), tmp_path / "report.html")
    page = Page(path.read_text(encoding="utf-8"))
    assert page.tags.count("script") == 2 and "img" not in page.tags  # the table's rows, and the script that shows them
    (table,) = tables(path.read_text(encoding="utf-8"))
    assert table["rows"][1][1] == "<script>alert(1)</script>"
    assert "<script>alert(1)</script>" in page.text
    assert '<img src="x">' in page.text


def test_divergences_are_in_the_headline(written):
    text = Page(written.read_text(encoding="utf-8")).text
    assert "12 draws diverged (3.0% of the draws, in chain 0)" in text


@pytest.mark.parametrize(
    "chains, draws", [(1, 1), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((100, 5), (1, 10), (4, 3)))]
)
def test_small_and_wide_runs_have_a_report(tmp_path, chains, draws):
    posterior = make_posterior(chains, draws)
    posterior = with_stats(posterior, energy=-posterior.stats["log_density"])
    assert "Summary" in report(posterior, tmp_path).text


def test_no_draws_are_an_error_and_no_file(tmp_path):
    with pytest.raises(ValueError, match=r"there are no draws to summarise: 4 chains of 0 draws\."):
        write_report(make_posterior(draws=0), tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_panels")
def test_names_choose_what_is_shown_and_not_what_is_judged(tmp_path):
    values = np.random.default_rng(0).normal(size=(2, 4, 100))
    values[1] += 5 * np.arange(4)[:, None]
    posterior = make_posterior(variables={"fine": values[0], "bad": values[1]})
    text = write_report(posterior, tmp_path / "report.html", names="fine").read_text(encoding="utf-8")
    assert [name for _, name, _, _ in tables(text)[0]["rows"]] == ["log_density", "fine"]
    assert "Draws of fine" in text and "Draws of bad" not in text
    assert "Not good to use" in text
    with pytest.raises(ValueError, match=r"there is no variable 'fin' among the draws"):
        write_report(posterior, tmp_path / "report.html", names=["fin"])
    with pytest.raises(ValueError, match="names= is empty"):
        write_report(posterior, tmp_path / "report.html", names=[])


def test_without_a_model_the_page_says_why_nothing_is_predicted(written):
    text = Page(written.read_text(encoding="utf-8")).text
    assert "No prior is shown: the model is unknown: the posterior was read from a file" in text
    assert "No check: the model is unknown" in text


@pytest.mark.usefixtures("no_panels")
def test_figures_of_the_user_stay_as_they_are(tmp_path):
    figure = new_figure(2, 2)
    figure.subplots().plot([1, 2])
    text = write_report(make_posterior(variables={}), tmp_path / "r.html", {"My <own>": figure}).read_text("utf-8")
    assert "My &lt;own&gt;" in text and "data:image/png;base64,iVBOR" in text


@pytest.mark.usefixtures("no_panels")
def test_another_run_beside(tmp_path):
    random = np.random.default_rng(0)
    variables = {name: random.normal(size=(4, 500)) for name in ("same", "far")}
    ours = make_posterior(variables=variables, draws=500)
    theirs = replace(ours, draws={"same": random.normal(size=(4, 500)), "far": 1 + random.normal(size=(4, 500))})
    text = write_report(ours, tmp_path / "r.html", beside=theirs).read_text(encoding="utf-8")
    table = tables(text)[0]
    assert [name for _, name, _, _ in table["rows"]] == ["far", "same"]
    assert [cells[2][0] for _, _, _, cells in table["rows"]] == ["warn", ""]
    assert "1 mean of 2 differ" in text
    other = make_posterior(variables={"else": random.normal(size=(4, 100))})
    assert "No element of this run is in the other one" in report_beside(ours, other, tmp_path)


def report_beside(ours, theirs, tmp_path):
    return write_report(ours, tmp_path / "other.html", beside=theirs).read_text(encoding="utf-8")


def test_a_histogram_of_each_element():
    random = np.random.default_rng(0)
    values = np.stack([random.normal(size=(4, 1000)), np.full((4, 1000), 2.0), np.full((4, 1000), np.nan)], axis=2)
    normal, constant, unknown = histograms(values)
    assert constant == unknown == "" and len(normal) == 20
    assert max(normal) == "9" and set(normal[8:12]) <= set("6789") and set(normal[:2] + normal[-2:]) <= set("0123")


@pytest.mark.parametrize("name", [r"$\foo$", "$$", "$_^$"])
def test_dollar_signs_in_names_are_dollar_signs(tmp_path, name):
    draws = {name: np.random.default_rng(0).normal(size=(4, 100, 2)).astype(np.float32)}
    posterior = replace(make_posterior(), draws=draws)
    page = posterior.report(tmp_path / "report.html").read_text()
    assert html.escape(name, quote=False) in page or html.escape(name) in page
    assert all(figure.stat().st_size for figure in save_figures(posterior, tmp_path))
