"""The command: what it writes, and the one line it says when it cannot."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx import cli


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, warmup, draws, options, pictures",
    [
        pytest.param(
            *("digits", 60, 20, ("--data-shards", "2"), ["reliability", "accuracy", "weights"]), marks=pytest.mark.slow
        ),  # which `make demo` runs, too
        ("chains", 20, 12, (), ["draws"]),
    ],
)
def test_a_demo_writes_its_report_pictures_and_result(phalanx, tmp_path, name, warmup, draws, options, pictures):
    sizes = ("--chains", "8", "--warmup", str(warmup), "--draws", str(draws), "--seed", "3")
    status, out, _ = phalanx("demo", name, *sizes, *options, "--out", "made")
    assert status == 0
    made = {path.name for path in (tmp_path / "made").iterdir()}
    assert {"report.html", "result.json", "traces.png", *(f"{p}.png" for p in pictures)} <= made
    result = json.loads((tmp_path / "made" / "result.json").read_text())
    assert result["run"]["num_chains"] == 8 and result["run"]["num_samples"] == draws and result["run"]["seed"] == 3
    assert result["timing"]["gradient_evaluations"] > 0
    assert "log_density" in out and "made/report.html" in out.replace("\n", "")
    assert "ood to use" in out
    if name == "digits":
        headline = result["headline"]
        assert 0.85 < headline["test_accuracy_mean_over_draws"] < headline["test_accuracy_bayesian_model_average"] < 1
        assert 0 < headline["expected_calibration_error"] < 0.2


@pytest.mark.slow
def test_mnist_in_its_own_format(phalanx, tmp_path, data_folder):
    sizes = ("--chains", "2", "--warmup", "0", "--draws", "1", "--out", "made")
    status, out, _ = phalanx("demo", "mnist", "--data", str(data_folder), "--data-shards", "4", *sizes)
    assert status == 0 and "60,000 images" in out
    assert json.loads((tmp_path / "made" / "result.json").read_text())["timing"]["gradient_evaluations"] == 2 * 101


def test_info_names_devices_mesh_versions_and_cache(phalanx):
    status, out, _ = phalanx("info")
    assert status == 0
    for word in ("cpu:7", "chain 4, data 1, model 1", "numpyro", "compilation cache"):
        assert word in out


@pytest.mark.parametrize(
    "arguments, line",
    [
        (
            ("demo", "nope"),
            "'nope' is not one of 'digits', 'mnist', 'chains', 'covertype', 'mixture', 'movielens', 'ensemble', "
            "'vae', 'image-transformer'.",
        ),
        (("demo", "digits", "--chains", "0"), "num_chains must be a whole number, at least 1; got 0."),
        (
            ("demo", "chains", "--chains", "6"),
            "num_chains=6 cannot be split evenly over 8 devices along the mesh's 'chain' axis; use 8 chains",
        ),
        (
            ("demo", "digits", "--data-shards", "3"),
            "--data-shards 3: there are 8 devices, and the data can be sharded over 1, 2, 4, 8 of them.",
        ),
        (("demo", "digits", "--devices", "99"), "use_cpu_devices(99): JAX has already started with 8 CPU device(s)."),
        (("demo", "mnist", "--data", "/no/such/folder"), "mnist: the folder given, /no/such/folder, does not exist."),
        (("demo", "digits", "--precision", "half"), "'half' is not one of 'float32', 'tensorfloat32', 'bfloat16'."),
        (("demo", "digits", "--seed", "-1"), "seed must be a whole number from 0 to 2**32 - 1, got -1."),
        (("demo", "digits", "--samples", "1e6"), "the demo digits does not have this option, which is for mixture."),
        (("demo", "ensemble", "--chains", "4"), "it trains networks; set --members and --epochs instead."),
        (("demo", "vae", "--draws", "4"), "it trains networks; set --epochs instead."),
        (("demo", "digits", "--epochs", "4"), "which is for ensemble and vae and image-transformer."),
        (("demo", "ensemble", "--binary"), "which is for vae."),
        (("demo", "image-transformer", "--members", "2"), "does not have this option, which is for ensemble."),
        (("demo", "digits", "--size", "3"), "No such option: --size"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_two(phalanx, arguments, line):
    status, _, err = phalanx(*arguments)
    assert status == 2
    assert len(err.strip().splitlines()) == 1 and err.startswith("phalanx: error: ") and line in err


def test_without_a_command_there_is_help_and_a_version(phalanx):
    status, out, err = phalanx()
    assert status == 0 and "Usage" in out and "sample" in out and not err
    status, out, _ = phalanx("--version")
    assert status == 0 and re.fullmatch(r"phalanx \d+\.\d+.*\n", out)


def test_the_package_is_a_command_too():
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    command = [sys.executable, "-m", "phalanx", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stdout.startswith("phalanx ")


def test_the_installed_command_fails_cleanly():
    done = subprocess.run(
        [sys.executable, "-c", "from phalanx.cli import main; main()", "demo", "mnist", "--data", "/no/such/folder"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
