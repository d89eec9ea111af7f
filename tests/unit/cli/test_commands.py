"""`phalanx fit`, `maximize`, `predict`, and the options of all commands: thin functions over public ones."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from tests.unit.report.posteriors import RECORD, make_posterior

import phalanx as phx
from phalanx.cli.by_name import GUIDES
from phalanx.cli.saved import initial
from phalanx.diagnostics import Finding, judged
from phalanx.posterior.record import Timing
from phalanx.variational.methods.step import Losses

MODEL = """
import numpyro.distributions as dist
import phalanx as phx


def line(x, y):
    slope = phx.sample("slope", dist.Normal(0.0, 5.0))
    phx.sample("y", dist.Normal(slope * x, 0.1), obs=y)


def groups(county, y):
    effect = phx.sample("effect", dist.Normal(0.0, 5.0).expand([2]))
    phx.sample("y", dist.Normal(effect[county], 0.1), obs=y)


def ages(age, y=None):
    phx.sample("wide", dist.Normal(0.0, 1.0).expand([2]))
    age = phx.sample("age", dist.Normal(50.0, 10.0).expand([age.shape[0]]), obs=age)
    phx.sample("y", dist.Normal(age, 0.01), obs=y)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models.py").write_text(MODEL)
    (tmp_path / "x.csv").write_text("x\n1.0\n2.0\n3.0\n")
    (tmp_path / "y.csv").write_text("y\n2.0\n4.0\n6.0\n")
    return tmp_path


DATA = ("models.py:line", "--data", "x.csv", "--data", "y.csv")


def test_maximize_prints_and_writes_the_values(phalanx, folder):
    status, out, _ = phalanx("maximize", *DATA, "--out", "top")
    assert (status == 0 and "slope: 2." in out) or "slope: 1.99" in out
    written = json.loads((folder / "top" / "result.json").read_text())
    assert written["values"]["slope"] == pytest.approx(2.0, abs=1e-2) and written["at_bounds"] == []


@pytest.mark.slow
def test_a_fit_is_written_and_predicted_from(phalanx, folder):
    status, out, err = phalanx("fit", *DATA, "--guide", "laplace", "--draws", "200", "--out", "fit", "--strict")
    assert status == 0, err
    assert "data: x.csv, y.csv: x [3], y [3]" in out and "slope" in out and "fit/fit.npz" in out
    assert phx.Fit.load(folder / "fit" / "fit.npz").verdict().good
    assert json.loads((folder / "fit" / "result.json").read_text())["verdict"]["grade"] == "good"
    (folder / "new.csv").write_text("x\n10.0\n")
    command = ("predict", "models.py:line", "--run", "fit", "--data", "new.csv", "--out", "new")
    status, out, err = phalanx(*command)
    assert status == 0 and "not among the data, so drawn by the model: y" in out, err
    drawn = np.load(folder / "new" / "predictions.npz")["y"]
    assert drawn.shape == (1, 200, 1) and abs(drawn.mean() - 20.0) < 1.0
    assert (folder / "new" / "predictions.csv").read_text().startswith("variable,mean,sd,3%,97%\ny[0],")
    assert phalanx(*command, "--quiet") == (0, "", "")


@pytest.mark.parametrize("kind, name", [(phx.Fit, "fit.npz"), (phx.Posterior, "posterior.npz")])
def test_a_fit_on_a_full_disk_is_printed_and_the_file_is_named(phalanx, folder, monkeypatch, kind, name):
    def refuse(self, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kind, "save", refuse)
    status, out, err = phalanx("fit", *DATA, "--guide", "laplace", "--draws", "50", "--out", "full")
    assert status == 2 and "slope" in out
    assert err.endswith(
        f"phalanx: error: full/{name} cannot be written ([Errno 28] No space left on device). Make room on the disk, "
        f"or name another folder with --out, and run again.\n"
    )


def test_a_saved_fit_has_the_page_and_summary_of_a_fit(phalanx, tmp_path, monkeypatch):
    """As far as the file allows: its draws lie beside it in the folder of `phalanx fit`."""
    monkeypatch.chdir(tmp_path)
    record = replace(RECORD, kernel="fit(full_rank(), elbo)", num_chains=1, num_samples=200, independent=True)
    elbo = np.linspace(-9.0, -7.0, 50).astype(np.float32)
    verdict = judged([Finding("k-hat", "The weights vary.", "a closer guide")], ())
    fit = phx.Fit({"loc": np.zeros(2)}, Losses(elbo, elbo), Timing(), record, steps=50, from_file={"verdict": verdict})
    draws = {"w": np.random.default_rng(0).normal(size=(1, 200, 2))}
    log_weight = -0.1 * (draws["w"] ** 2).sum(-1)
    posterior = phx.Posterior(draws, {"log_weight": log_weight, "log_density": log_weight}, Timing(), record)
    (tmp_path / "fit").mkdir()
    (tmp_path / "alone").mkdir()
    fit.save("fit/fit.npz")
    fit.save("alone/mine.npz")
    posterior.save("fit/posterior.npz")
    for path, in_both, more in (("fit", 1, 1), ("fit/fit.npz", 1, 1), ("alone/mine.npz", 1, 0)):
        status, _, err = phalanx("report", path, "--out", "page.html")
        text = (tmp_path / "page.html").read_text("utf-8")
        assert status == 0, err
        for words in ("Fit of regression", "Evidence lower bound", "The weights vary."):
            assert (words in text) == in_both, (path, words)
        for words in ("k-hat</", "Importance weights", "Weighted marginals", "Draws of w"):
            assert (words in text) == more, (path, words)
        status, printed, err = phalanx("summary", path)
        assert status == 0 and ("ess_bulk" in printed) == more and ("Fit(50 steps of" in printed) != more, err
        assert ("The weights vary." in printed) != more  # the draws here have a verdict of their own
    assert "holds no draws. Continue the fit, phx.fit(" in text
    status, _, err = phalanx("report", "alone/mine.npz", "--name", "w")
    assert status == 2 and "report: names is about draws, and this fit was read from a file without any." in err
    status, _, err = phalanx("report", "alone/mine.npz", "--model", "models.py:line")
    assert status == 2 and "report: --model draws data anew at draws. The variables are not shown" in err
    assert phalanx("report", "fit", "--strict")[0] == phalanx("summary", "alone/mine.npz", "--strict")[0] == 3
    make_posterior().save("fit/posterior.npz")  # a run has written to the folder since
    assert phalanx("report", "fit", "--out", "page.html")[0] == 0
    assert "Fit of regression" not in (tmp_path / "page.html").read_text("utf-8")


def test_the_report_of_a_run_with_its_model_has_the_predictive_check(phalanx, folder):
    slopes = np.random.default_rng(0).normal(2.0, 0.03, size=(4, 50))
    record = replace(RECORD, num_samples=50, latents={"slope": ""}, names={})
    run = make_posterior(4, 50, variables={"slope": slopes})
    replace(run, record=record).save(folder / "run.npz")
    status, _, err = phalanx("report", "run.npz", "--model", *DATA)
    text = (folder / "report.html").read_text("utf-8")
    assert status == 0 and "Predictive check of y" in text and "Pareto k of y" in text, err
    for arguments, words in (
        (("--data", "x.csv"), "--data is for the model: name it, --model FILE.py:NAME"),
        (("--model", *DATA[:3]), "line(x, y) asks for y, and the data have only"),
        (
            ("--model", "models.py:groups", "--data", "y.csv", "--data", "county.csv"),
            "has the latent variables 'effect'",
        ),
    ):
        (folder / "county.csv").write_text("county\n0\n1\n1\n")
        status, _, err = phalanx("report", "run.npz", *arguments)
        assert status == 2 and words in err, err


def test_predictions_from_the_prior(phalanx, folder):
    status, _, err = phalanx("predict", "models.py:line", "--data", "x.csv", "--draws", "50", "--out", "prior")
    drawn = np.load(folder / "prior" / "predictions.npz")
    assert status == 0 and drawn["y"].shape == (50, 3) and drawn["slope"].shape == (50,), err


def test_predictions_are_at_known_covariates_and_keep_other_columns(phalanx, folder):
    (folder / "new.csv").write_text("id,age,mean\np7,20.0,1\np9,80.0,2\n")
    command = ("predict", "models.py:ages", "--data", "new.csv", "--draws", "40", "--out", "new")
    status, out, err = phalanx(*command)
    assert status == 0 and "the model does not ask for id, mean: they stand beside the predictions" in out, err
    drawn = np.load(folder / "new" / "predictions.npz")
    np.testing.assert_allclose(drawn["y"], [[20.0, 80.0]] * 40, atol=0.1)
    lines = (folder / "new" / "predictions.csv").read_text().splitlines()
    beside = {line.split(",")[0]: ",".join(line.split(",")[-2:]) for line in lines}
    of_rows = {f"{name}[{row}]": words for name in ("age", "y") for row, words in enumerate(("p7,1", "p9,2"))}
    assert lines[0] == "variable,mean,sd,3%,97%,id,mean_data" and lines[1].startswith("age[0],20.0,")
    assert beside == {"variable": "id,mean_data", "wide[0]": ",", "wide[1]": ",", **of_rows}
    assert phalanx(*command, "--redraw")[0] == 0 and np.load(folder / "new" / "predictions.npz")["age"].std() > 1.0
    assert phalanx(*command, "--given", "age")[0] == 0
    status, _, err = phalanx(*command, "--given", "ages")
    assert status == 2 and "given has 'ages', which these data do not observe; they observe 'age'" in err
    assert phalanx(*command, "--given", "age", "--redraw")[0] == 2


def test_predictions_have_the_names_of_levels(phalanx, folder):
    (folder / "county.csv").write_text("county\nAnoka\nAitkin\nAnoka\n")
    status, printed, err = phalanx(
        "predict", "models.py:groups", "--data", "county.csv", "--draws", "9", "--out", "new"
    )
    assert status == 0, err
    rows = [line.split(",")[0] for line in (folder / "new" / "predictions.csv").read_text().splitlines()]
    assert rows == ["variable", "effect[Aitkin]", "effect[Anoka]", "y[0]", "y[1]", "y[2]"]
    assert "effect[Anoka]" in printed


@pytest.fixture
def called(monkeypatch):
    """The arguments that the command passes to `phx.mcmc`, which returns a run of too few draws."""
    given: dict[str, Any] = {}
    posterior = make_posterior()

    def mcmc(model, data, **options):
        given.update(options, data=data)
        return posterior

    module = import_module("phalanx.cli.sample")
    monkeypatch.setattr(module, "mcmc", mcmc)
    monkeypatch.setattr(module, "write_folder", lambda *args, **options: [])
    return given, posterior


def test_sample_passes_its_options_on(phalanx, folder, called, monkeypatch):
    given, _ = called
    (folder / "start.json").write_text('{"slope": 1.5}')
    status, out, err = phalanx("sample", *DATA, "--init", "start.json", "--missing", "impute", "--quiet")
    assert (status, out, err) == (0, "", "")
    assert given["init"] == {"slope": 1.5} and given["missing"] == "impute" and given["progress"] is False
    phalanx("sample", *DATA, "--init", "prior")
    assert given["init"] == "prior" and given["missing"] is None and given["progress"] is True


@pytest.mark.parametrize("grade, status", [("good", 0), ("usable", 0), ("not good", 3)])
def test_strict_has_a_status_of_its_own(phalanx, folder, called, monkeypatch, grade, status):
    findings = [] if grade == "good" else [Finding("a topic", "A problem.", "a remedy", grade)]
    monkeypatch.setattr(type(called[1]), "verdict", lambda self, checks=(): judged(findings, ()))
    assert phalanx("sample", *DATA, "--strict", "--quiet")[0] == status
    assert phalanx("sample", *DATA, "--quiet")[0] == 0
    called[1].save(folder / "run.npz")
    assert phalanx("summary", "run.npz", "--strict")[0] == status


WRONG = {
    "a guide": (("fit", *DATA, "--guide", "mean"), "'mean' is not one of mean_field, full_rank"),
    "no run": (("predict", "models.py:line", "--run", "lost"), "'lost' does not exist"),
    "a name in two files": (("fit", *DATA, "--data", "x.csv"), "--data x.csv: 'x' is in x.csv, too. Rename it"),
    "an init": (("sample", *DATA, "--init", "lost.json"), "--init lost.json: the file does not exist in"),
    "an init that is not JSON": (("maximize", *DATA, "--init", "x.csv"), "--init x.csv: not JSON"),
    "another word": (("sample", *DATA, "--missing", "drop"), "Invalid value for '--missing'"),
    "an argument that the data lack": (("maximize", "models.py:line", "--data", "x.csv"), "asks for y, and the data"),
}


@pytest.mark.parametrize("command, words", WRONG.values(), ids=WRONG)
def test_a_mistake_is_one_line_with_the_place(phalanx, folder, command, words):
    status, _, err = phalanx(*command)
    assert status == 2 and words in err and err.count("\n") == 1, err


def test_a_saved_run_is_a_start(tmp_path):
    make_posterior().save(tmp_path / "run.npz")
    found = initial(str(tmp_path / "run.npz"))
    assert isinstance(found, phx.Posterior)


def test_guides_are_those_of_python():
    assert all(make is getattr(phx.guides, name) for name, make in GUIDES.items())


def test_the_shell_completes_commands(phalanx, monkeypatch):
    from typer.testing import CliRunner

    from phalanx.cli import app

    given = {"_PHALANX_COMPLETE": "complete_bash", "COMP_WORDS": "phalanx max", "COMP_CWORD": "1"}
    assert "maximize" in CliRunner().invoke(app, [], prog_name="phalanx", env=given).output
