"""`phalanx sample`: a user's model and data in, draws and a report out; a mistake is one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from tests.unit.report.posteriors import make_posterior

from phalanx.adaptation.step_size import StepSize
from phalanx.cli import by_name, saved
from phalanx.cli.data import request
from phalanx.cli.data.data_file import read_data
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord, Timing

MODEL = """
import numpyro.distributions as dist
import phalanx as phx

FACTOR = 2.0


def line(x, y):
    slope = phx.sample("slope", dist.Normal(0.0, 5.0))
    noise = phx.sample("noise", dist.HalfNormal(1.0))
    phx.deterministic("double", FACTOR * slope)
    phx.sample("y", dist.Normal(slope * x, noise), obs=y)


def coin():
    phx.sample("p", dist.Beta(2.0, 2.0))


def broken(x):
    slope = phx.sample("slope", dist.Normal(0.0, 5.0))
    phx.sample("y", dist.Normal(slope * x, 1.0), obs=x.shape[1])
"""
sample = import_module("phalanx.cli.sample")
RECORD = RunRecord("coin", "nuts()", 4, 2, 2, 0, {}, [], {}, {}, {})
SIZES = ("--kernel", "hmc", "--chains", "4", "--warmup", "100", "--draws", "100")


@pytest.fixture
def folder(tmp_path):
    """A folder with the model and 41 rows: slope 2, noise 0.1."""
    (tmp_path / "models.py").write_text(MODEL)
    random = np.random.default_rng(0)
    x = random.normal(size=41)
    y = 2 * x + 0.1 * random.normal(size=41)
    rows = "\n".join(f"r{i},{a},{b}" for i, (a, b) in enumerate(zip(x, y, strict=True)))
    (tmp_path / "rows.csv").write_text(f"name,x,y\n{rows}\n")
    return tmp_path


MINE = """
import matplotlib.pyplot as plt
import phalanx as phx
from phalanx.diagnostics import Finding


def short_steps():
    return phx.hmc(num_steps=3)


def range_of():
    return phx.reducers.extremes()


def far_off(run):
    most = abs(run.table["mean"].iloc[1:]).max()
    return Finding("far off", f"A mean is {most:.1f}.", "a prior") if most > 1.0 else "No mean is far off."


def levels(posterior):
    figure, axes = plt.subplots()
    axes.hist(posterior.draws["slope"].ravel())
    return figure
"""


@pytest.mark.slow
def test_a_kernel_a_reducer_a_check_and_a_figure_of_ones_own(phalanx, folder):
    (folder / "mine.py").write_text(MINE)
    own = ("--kernel", "mine.py:short_steps", "--reducer", "moments", "--reducer", "mine.py:range_of",
           "--check", "mine.py:far_off", "--figure", "mine.py:levels")  # fmt: skip
    sizes = ("--chains", "4", "--warmup", "100", "--draws", "100")
    status, printed, err = phalanx("sample", "models.py:line", "--data", "rows.csv", *own, *sizes)
    assert status == 0, err
    out = folder / "out" / "line"
    posterior = Posterior.load(out / "posterior.npz")
    assert posterior.record.kernel.startswith("hmc(num_steps=3") and set(posterior.reduced) == {"moments", "range_of"}
    assert "- A mean is 4.0.\n  Try a prior." in printed and "range_of: {" in printed
    assert (out / "levels.png").exists() and "<h2>Levels</h2>" in (out / "report.html").read_text()
    assert not json.loads((out / "result.json").read_text())["verdict"]["good"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--reducer", "covariances"), "'covariances' is not one of covariance, ess"),
        (("--reducer", "mine.py:far"), "reducer 'mine.py:far': mine.py has no 'far'"),
        (("--kernel", "mine.py:range_of"), "kernel 'mine.py:range_of': the function must return a phx.Kernel"),
    ],
)
def test_wrong_references_are_refused(phalanx, folder, option, message):
    (folder / "mine.py").write_text(MINE)
    status, _, err = phalanx("sample", "models.py:coin", *option)
    assert status == 2 and message in err


def test_summary_is_printed_and_files_are_written(phalanx, folder):
    status, out, _ = phalanx("sample", "models.py:line", "--data", "rows.csv", *SIZES, "--seed", "3", "--out", "made")
    assert status == 0
    assert "models.py:line" in out and "data: rows.csv: x [41], y [41]" in out
    assert "left out, since the model does not ask for it: name" in out
    assert re.search(r"slope +1\.9|slope +2\.0", out) and "gradients" in out and "made/report.html" in out
    made = folder / "made"
    files = {"posterior.npz", "report.html", "traces.png", "ranks.png", "energy.png", "summary.csv", "result.json"}
    assert files <= {path.name for path in made.iterdir()}
    posterior = Posterior.load(made / "posterior.npz")
    assert set(posterior.draws) == {"slope", "noise", "double"} and posterior.draws["slope"].shape == (4, 100)
    # The mean of 400 draws of a slope whose posterior sd is about 0.016.
    assert abs(posterior.draws["slope"].mean() - 2) < 0.1
    lines = (made / "summary.csv").read_text().splitlines()
    assert lines[0].startswith("variable,mean,sd,") and [line.split(",")[0] for line in lines[1:]] == [
        "log_density",
        "slope",
        "noise",
        "double",
    ]
    assert json.loads((made / "result.json").read_text())["run"]["seed"] == 3


WORDS = """
import numpyro.distributions as dist
import phalanx as phx


def groups(county, y):
    level = phx.sample("level", dist.Normal(0.0, 5.0).expand([2]))
    phx.sample("y", dist.Normal(level[county], 1.0), obs=y)
"""


@pytest.mark.slow
def test_words_are_numbered_and_said(phalanx, folder):
    (folder / "words.py").write_text(WORDS)
    (folder / "words.csv").write_text("county,y\nCass,1\nAitkin,20\nCass,3\n")
    tuned = ("--target-acceptance", "0.9", "--max-depth", "7", "--num-chains", "4", "--num-warmup", "9")
    status, out, _ = phalanx("sample", "words.py:groups", "--data", "words.csv", *tuned, "--num-samples", "20")
    assert status == 0 and "county: Aitkin is 0, Cass is 1" in out
    posterior = Posterior.load(folder / "out" / "groups" / "posterior.npz")
    assert posterior.record.data["county"] == "int32 (3,), levels Aitkin, Cass"
    assert posterior.record.num_warmup == 9 and "max_depth=7" in posterior.record.kernel
    made: dict[str, Any] = {}
    exec(WORDS, made)
    (folder / "one.csv").write_text("county,y\nCass,0\n")  # by itself, Cass would be 0
    drawn = posterior.predictive(read_data(folder / "one.csv"), model=made["groups"], seed=1)["y"]
    noise = drawn[..., 0] - posterior.draws["level"][..., 1]  # a standard normal; some 17 in another numbering
    assert np.mean(noise**2) < 2  # 80 draws: more than 6 standard errors above 1
    (folder / "words.csv").write_text("county,y\nAitkin,1\nBecker,2\nCass,3\n")
    status, _, err = phalanx("sample", "words.py:groups", "--data", "words.csv")
    assert status == 2 and "level[county]: 2 is outside 0..1, in words.py:8; it is county[2]" in err


def test_options_that_the_verdict_advises_reach_the_kernel():
    (_, step_size) = by_name.kernel("hmc", target_acceptance=0.9, max_depth=None).tuners
    assert isinstance(step_size, StepSize) and step_size.target == 0.9
    assert "step_size=0.5" in by_name.kernel("hmc", step_size=0.5).name


def test_a_kernel_on_a_few_rows_is_told_how_many():
    assert by_name.kernel("sgld", step_size=0.1, batch_size=5, max_depth=None).batch_size == 5
    with pytest.raises(typer.BadParameter, match="the kernel sghmc needs a batch_size"):
        by_name.kernel("sghmc", step_size=0.1, batch_size=None)
    with pytest.raises(typer.BadParameter, match="the kernel nuts has no batch_size"):
        by_name.kernel("nuts", step_size=0.1, batch_size=5)


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("mcmc", "phalanx: interrupted: no draw was made, so no file was written.\n"),
        ("read_data", "phalanx: interrupted: no file was written.\n"),
        (
            "write_folder",
            "phalanx: interrupted: every file in out/coin is complete; posterior.npz is written first.",
        ),
    ],
)
def test_ctrl_c_is_status_130_and_says_what_there_is(phalanx, folder, monkeypatch, what, words):
    made = Posterior({"p": np.ones((4, 2))}, {"energy": np.ones((4, 2))}, Timing(), RECORD)
    monkeypatch.setattr(sample, "mcmc", lambda *_, **__: made)
    monkeypatch.setattr(sample, "print_run", lambda *_: None)
    monkeypatch.setattr(request if what == "read_data" else sample, what, interrupted)
    data = ("--data", "rows.csv") if what == "read_data" else ()
    status, _, err = phalanx("sample", "models.py:coin", *data)
    assert status == 130 and err.startswith(words)
    assert (folder / "out" / "coin" / "posterior.npz").exists() == (what == "write_folder")


@pytest.mark.slow
def test_ctrl_c_in_sampling_is_status_130_with_the_draws_written(phalanx, folder, monkeypatch):
    def cut_short(*_, **__):
        posterior = make_posterior(4, 100)
        return replace(posterior, record=replace(posterior.record, interrupted=True))

    monkeypatch.setattr(sample, "mcmc", cut_short)
    status, out, err = phalanx("sample", "models.py:coin", *SIZES)
    assert (
        status == 130
        and "data:" not in out
        and err.endswith("phalanx: interrupted: the 100 draws of each chain so far are in out/coin.\n")
    )
    assert {"posterior.npz", "report.html", "summary.csv"} <= {p.name for p in (folder / "out" / "coin").iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("after", ["warm-up", "sampling"])
def test_ctrl_c_reaches_a_job_in_the_background(folder, after):
    """Shells start such jobs with SIGINT ignored."""
    sizes = {"warm-up": ("--warmup", "100000000"), "sampling": ("--warmup", "100", "--draws", "2000000")}[after]
    assert sample.__file__ is not None
    process = subprocess.Popen(
        ["sh", "-c", "trap '' INT; exec \"$@\"", "sh",
         sys.executable, "-m", "phalanx", "sample", "models.py:coin", *sizes],
        cwd=folder, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(sample.__file__).parents[2])},
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if after in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130 and "phalanx: interrupted: " in err
    assert (folder / "out" / "coin" / "posterior.npz").exists() == (after == "sampling")


@pytest.mark.slow
def test_rows_over_devices_give_the_same_answer(phalanx, folder):
    arguments = ("sample", "models.py:line", "--data", "rows.csv", *SIZES)
    phalanx(*arguments, "--out", "whole")
    status, out, _ = phalanx(*arguments, "--data-shards", "2", "--out", "spread")
    assert status == 0 and "sharded over devices: the rows of x, y" in out
    whole, spread = (Posterior.load(folder / name / "posterior.npz") for name in ("whole", "spread"))
    assert spread.record.mesh["data"] == 2 and "rows over 'data'" in spread.record.data["x"]
    # 400 draws each of sd 0.016; their means differ by 5 sd for 100 effective draws once in a million runs.
    assert abs(whole.draws["slope"].mean() - spread.draws["slope"].mean()) < 5 * 0.016 * np.sqrt(2 / 100)


OPTIONS = ("--kernel", "rwmh", "--keep", "double", "--keep", "slope", "--thin", "5", "--precision", "bfloat16")


def test_options_reach_the_run(phalanx, folder, monkeypatch):
    asked = {}

    def run(program, data, **options):
        asked.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(sample, "mcmc", run)
    phalanx("sample", "models.py:line", "--data", "rows.csv", *SIZES, *OPTIONS)
    expected = {"keep": ["double", "slope"], "thin": 5, "matmul_precision": "bfloat16"}
    assert asked | {"num_chains": 4, "num_warmup": 100, "num_samples": 100} | expected == asked
    assert asked["kernel"].name.startswith("rwmh")


@pytest.mark.slow
def test_a_run_does_as_the_options_say(phalanx, folder):
    status, *_ = phalanx("sample", "models.py:line", "--data", "rows.csv", *SIZES, *OPTIONS)
    assert status == 0
    posterior = Posterior.load(folder / "out" / "line" / "posterior.npz")
    assert posterior.draws["double"].shape == (4, 20) and list(posterior.draws) == ["double", "slope"]
    np.testing.assert_allclose(posterior.draws["double"], 2 * posterior.draws["slope"], rtol=1e-6)
    assert posterior.record.kernel.startswith("rwmh") and posterior.record.matmul_precision == "bfloat16"


@pytest.mark.slow
def test_a_model_without_data(phalanx, folder):
    status, out, _ = phalanx("sample", "models.py:coin", *SIZES)
    assert status == 0 and "data:" not in out
    assert Posterior.load(folder / "out" / "coin" / "posterior.npz").draws["p"].shape == (4, 100)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("models.py:lin", "--data", "rows.csv"), "models.py has no 'lin'. Its functions: line, coin, broken."),
        (("model.py:line",), "model 'model.py:line': model.py cannot be read: it does not exist in "),
        (("models.py:line",), "line(x, y) asks for x, y, and there are no data: name a file of them with --data."),
        (("models.py:line", "--data", "no.csv"), "--data no.csv: the file does not exist in "),
        (
            ("models.py:broken", "--data", "rows.csv", *SIZES),
            "models.py: 'x.shape[1]': tuple index out of range. Here x has shape (41,).",
        ),
        (("models.py:line", "--data", "rows.csv", "--draws", "0"), "num_samples must be a whole number, at least 1"),
        (("models.py:line", "--data", "rows.csv", "--kernel", "gibbs"), "'gibbs' is not one of"),
        (("models.py:coin", "--kernel", "hmc", "--max-depth", "5"), "the kernel hmc has no max_depth."),
        (("models.py:line", "--data", "rows.csv", "--keep", "slop"), "keep: the model has no variable 'slop'"),
        (("models.py:line", "--data", "rows.csv", "--data-shards", "3"), "--data-shards 3: there are 8 devices"),
        (("models.py:line", "--data", "rows.csv", "--out", "rows.csv"), "File exists: 'rows.csv'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_two(phalanx, folder, arguments, line):
    status, _, err = phalanx("sample", *arguments)
    assert status == 2
    assert len(err.strip().splitlines()) == 1 and err.startswith("phalanx: error: ") and line in err


def test_a_result_that_cannot_be_saved_is_printed_and_the_file_is_named(tmp_path, capsys):
    def refuse(path):
        raise OSError(28, "No space left on device")

    file = tmp_path / "posterior.npz"
    with pytest.raises(OSError) as caught:
        saved.save_or_print(file, refuse, lambda: sample._print_result(make_posterior(), []))
    assert str(caught.value) == (
        f"{file} cannot be written ([Errno 28] No space left on device). Make room on the disk, or name another folder "
        f"with --out, and run again."
    )
    assert "log_density" in capsys.readouterr().out


def test_a_table_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    def half(self, path, **_):
        path.write_text("half", "utf-8")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pandas.DataFrame.to_csv", half)
    (file := tmp_path / "summary.csv").write_text("earlier", "utf-8")
    with pytest.raises(OSError, match="No space left"):
        saved.write_table(make_posterior(), file)
    assert [*tmp_path.iterdir()] == [file] and file.read_text("utf-8") == "earlier"
