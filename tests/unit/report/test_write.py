import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from tests.unit.report.posteriors import make_posterior, with_divergences, with_stats

from phalanx.report import write_report


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
        if "style" not in self.open:
            self.text += data


def report(posterior, tmp_path):
    return Page(write_report(posterior, tmp_path / "report.html").read_text(encoding="utf-8"))


def test_one_file_that_needs_nothing_beside_it(written):
    text = written.read_text(encoding="utf-8")
    page = Page(text)
    assert len(page.references) == 4
    for reference in page.references:
        assert b64decode(reference.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "http" not in text and "url(" not in text and "@import" not in text
    assert [entry.name for entry in written.parent.iterdir()] == ["report.html"]


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


def test_of_many_elements_the_worst_forty_are_shown(tmp_path):
    values = np.random.default_rng(0).normal(size=(4, 50, 50))
    values[..., 17] += 3 * np.arange(4)[:, None]
    posterior = make_posterior(draws=50, variables={"x": values})
    text = write_report(posterior, tmp_path / "report.html").read_text(encoding="utf-8")
    rows = re.findall(r'<tr class="\w*"><th>(.*?)</th>', text)
    assert rows[:2] == ["log_density", "x[17]"]
    assert len(rows) == 41
    assert "The 40 of 50 scalar elements with the worst R-hat, worst first." in text


def test_names_and_sources_cannot_break_the_page(tmp_path):
    posterior = make_posterior(variables={"<script>alert(1)</script>": np.random.default_rng(0).normal(size=(4, 100))})
    record = replace(posterior.record, model='<img src="x">', kernel="<b>", data={"</table>": "&"}, source="</pre><i>")
    page = report(replace(posterior, record=record), tmp_path)
    assert len(page.references) == 4
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in page.text
    assert '<img src="x">' in page.text


def test_divergences_are_in_the_headline(written):
    text = Page(written.read_text(encoding="utf-8")).text
    assert "12 draws diverged (3.0% of the draws, in chain 0)" in text


@pytest.mark.parametrize(
    "chains, draws", [(1, 1), (100, 5), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((1, 10), (4, 3)))]
)
def test_small_and_wide_runs_have_a_report(tmp_path, chains, draws):
    posterior = make_posterior(chains, draws)
    posterior = with_stats(posterior, energy=-posterior.stats["log_density"])
    assert "Summary" in report(posterior, tmp_path).text


def test_no_draws_are_an_error_and_no_file(tmp_path):
    with pytest.raises(ValueError, match=r"there are no draws to summarise: 4 chains of 0 draws\."):
        write_report(make_posterior(draws=0), tmp_path / "report.html")
    assert not list(tmp_path.iterdir())
