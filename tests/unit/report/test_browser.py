"""The page in a real browser, headless: it overflows at no width, its script works, and it logs no error."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread
from tests.browser import measured, need_browser
from tests.unit.report.posteriors import make_posterior, with_divergences

from phalanx.report import write_report
from phalanx.report.plots.style import new_figure

pytestmark = pytest.mark.slow

WIDTHS = (390, 820, 1440)

# A browser's window has a least width of 500, a frame has none.
FRAMES = """<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<body style="margin:0;display:flex;align-items:flex-start"><script>
const found = {};
addEventListener("message", (event) => {
  found[event.data.asked] = event.data;
  document.documentElement.dataset.measured = JSON.stringify(found);
});
</script>"""

MEASURE = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(String(event.message)));
addEventListener("load", () => {
  const names = () => [...document.querySelectorAll(".summary tbody th")].map((cell) => cell.textContent);
  const sides = [...document.querySelectorAll("main *")].filter((part) => !part.closest(".scroll, .wide, nav, pre"));
  const beyond = sides.filter((part) => part.getBoundingClientRect().right > innerWidth + 1);
  const measured = {
    asked: Number(location.hash.slice(1)),
    inside: innerWidth,
    width: document.documentElement.scrollWidth,
    beyond: beyond.map((part) => part.outerHTML.slice(0, 80)),
    background: getComputedStyle(document.body).backgroundColor,
    first: names(),
  };
  const boxes = [...document.querySelectorAll(".table")];
  const box = boxes.find((one) => one.textContent.includes("log_density"));
  const search = box.querySelector("input[type=search]");
  search.value = "WEIGHT 17";
  search.dispatchEvent(new Event("input"));
  measured.found = names();
  search.value = "";
  search.dispatchEvent(new Event("input"));
  [...box.querySelectorAll("thead button")].find((button) => button.textContent === "mean").click();
  measured.sorted = names();
  box.querySelector("button.more").click();
  measured.more = names().length;
  parent.postMessage({ ...measured, errors }, "*");
});
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with long names, many rows, divergences, another run beside, and a figure of the user."""
    need_browser()
    random = np.random.default_rng(0)
    weights = random.normal(size=(4, 60, 120)) + np.linspace(-1, 1, 120)
    variables = {
        "weight": weights,
        "b": random.normal(size=(4, 60)),
        "a_long_name_" * 8: random.normal(size=(4, 60, 3)),
    }
    posterior = with_divergences(make_posterior(draws=60, variables=variables), 5)
    posterior = replace(posterior, record=replace(posterior.record, data={"x" * 200: "float32" * 40}))
    folder = tmp_path_factory.mktemp("page")
    path = write_report(posterior, folder / "plain.html", {"Mine": new_figure(14, 3)}, beside=make_posterior(draws=60))
    text = path.read_text(encoding="utf-8")
    (folder / "page.html").write_text(text.replace("<head>", f"<head>{MEASURE}", 1), encoding="utf-8")
    frame = '<iframe src="page.html#{0}" width="{0}" height="2000" style="border:0;flex:none"></iframe>'
    (folder / "frames.html").write_text(FRAMES + "".join(frame.format(width) for width in WIDTHS), encoding="utf-8")
    return folder / "frames.html"


def look(page, *, dark):
    """Open the page; return what it measured by its width, and a screenshot."""
    picture = page.with_name("dark.png" if dark else "light.png")
    size = f"--window-size={sum(WIDTHS)},2000"
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    profile = page.parent / picture.stem
    found, logged = measured(page, profile, size, scheme, f"--screenshot={picture}", seconds=4)
    assert not logged, "\n".join(logged)
    return {int(width): of_width for width, of_width in found.items()}, imread(picture)


@pytest.fixture(scope="module")
def light(page):
    return look(page, dark=False)


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows_and_tables_sort_and_search(light, width):
    found, left = light[0][width], sum(one for one in WIDTHS if one < width)
    assert found["errors"] == [] and found["inside"] == width
    assert found["width"] <= width and found["beyond"] == []
    picture = light[1][:, left : left + width, :3]
    assert picture.shape[1] == width and picture.std() > 0.02  # something is on it
    assert len(found["first"]) > 40 and "log_density" in found["first"]
    assert sorted(name for name in found["found"] if name.startswith("weight")) == ["weight[117]", "weight[17]"]
    largest = [int(number) for number in re.findall(r"weight\[(\d+)\]", " ".join(found["sorted"]))][:10]
    assert np.mean(largest) > 100
    assert found["more"] > len(found["first"])


def test_a_dark_page_for_those_who_prefer_it(page, light):
    dark = look(page, dark=True)
    assert light[0][390]["background"] != dark[0][390]["background"]
    assert light[1][..., :3].mean() > 0.8 and dark[1][..., :3].mean() < 0.3
