"""Posteriors, fits, verdicts and summaries as a notebook shows them: short, and with names escaped."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import numpyro.distributions as dist
import pytest
from tests.unit.report.posteriors import make_posterior

import phalanx as phx
from phalanx.diagnostics import Finding, judged
from phalanx.posterior.display import MOST_ROWS, as_html

HOSTILE = "<script>alert(1)</script>"


def text_of(html: str) -> str:
    return re.sub("<[^>]*>", " ", html)


def test_a_posterior_has_its_sizes_and_variables():
    posterior = make_posterior()
    html = posterior._repr_html_()
    assert f"{posterior.num_chains} chains x {posterior.num_draws:,} draws" in html
    assert all(name in text_of(html) for name in posterior.draws) and html.count("<tr") == len(posterior.draws) + 1
    assert repr(posterior).startswith("Posterior(")


def test_names_are_escaped():
    arrays = {HOSTILE: np.zeros((2, 3))}
    bad = judged([Finding("topic", f"{HOSTILE} is bad.", HOSTILE)], ())
    posterior = make_posterior()
    posterior.draws[HOSTILE] = next(iter(posterior.draws.values()))
    for html in (as_html(HOSTILE, {HOSTILE: HOSTILE}, arrays), bad._repr_html_(), posterior._repr_html_()):
        assert "<script>" not in html and "&lt;script&gt;" in html


def test_thousands_of_variables_are_a_short_table():
    html = as_html("Posterior", {}, {f"x{number}": np.zeros(2) for number in range(2000)})
    assert html.count("<tr") == MOST_ROWS + 1 and "1,980 more variables" in html and len(html) < 6000


def test_a_verdict_has_its_headline_findings_and_advice():
    html = judged([Finding("few draws", "There are 10 draws.", "a larger num_samples")], ())._repr_html_()
    assert "Not good to use yet: few draws." in html and "Try a larger num_samples." in html
    assert "<li>" not in judged([], ("All is well.",))._repr_html_()


def test_a_fit_has_its_parameters():
    def model(y):
        phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    html = phx.fit(model, phx.guides.laplace(), {"y": np.zeros(3)}, progress=False)._repr_html_()
    assert "Fit" in html and "loc" in html and "scale_tril" in html


CELLS = (
    "import jax; jax.config.update('jax_num_cpu_devices', 1)\n"
    "import numpy as np, numpyro.distributions as dist, phalanx as phx\n"
    "def model(y):\n"
    "    mean = phx.sample('mean', dist.Normal(0.0, 10.0))\n"
    "    phx.sample('y', dist.Normal(mean, 1.0), obs=y)",
    "posterior = phx.mcmc(model, {'y': np.arange(5.0)}, num_warmup=200, num_samples=200)",
    "posterior",
    "posterior.summary()",
    "posterior.verdict()",
)


def notebook_of(cells):
    """A notebook of code cells, in the format 4.5."""
    code = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    listed = [{**code, "id": str(number), "source": cell} for number, cell in enumerate(cells)]
    return {"cells": listed, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.slow
@pytest.mark.skipif(not all(map(find_spec, ("nbclient", "ipykernel"))), reason="needs nbclient and ipykernel")
def test_a_notebook_runs_and_its_output_stays_short(tmp_path):
    file = tmp_path / "notebook.ipynb"
    file.write_text(json.dumps(notebook_of(CELLS)))
    # in a process of its own: here IPython would make later tests believe that they run in a notebook
    execute = "from nbclient.cli import main; main()"
    subprocess.run(
        [sys.executable, "-c", execute, "--inplace", "--kernel_name=python3", "--timeout=600", str(file)], check=True
    )
    _, run, *shown = (cell["outputs"] for cell in json.loads(file.read_text())["cells"])
    displays = ["".join(one["data"]["text/plain"]) for one in run if one["output_type"] == "display_data"]
    assert len(displays) == 1 and len(displays[0].splitlines()) == 3  # memory, warm-up, sampling
    assert "sampling  4 chains x 200/200" in displays[0] and "\\r" not in json.dumps(run)
    for outputs, words in zip(shown, ("Posterior", "ess_bulk", "<strong"), strict=True):
        (output,) = outputs
        assert words in "".join(output["data"]["text/html"])
