"""`phalanx launch` with real processes: one run, one end, and one line about the first failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.mesh.in_processes import SCENARIOS

import phalanx as phx
from phalanx.mesh.agreement import differences

SCRIPT = Path(__file__).parent / "launched.py"
ROOT = SCRIPT.parents[2]
END_SECONDS = 20
"""Seconds within which all processes have ended after one has failed."""


def start(folder: Path, *arguments: str, count: int = 2, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_FLAGS", "JAX_"))}
    environment |= {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "phalanx", "launch", "-n", str(count), *options, str(SCRIPT), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, stdout=pipe, stderr=pipe)


def run(folder: Path, *arguments: str, **options) -> tuple[int, str, str]:
    process = start(folder, *arguments, **options)
    out, err = process.communicate(timeout=400)
    return process.returncode, out, err


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    while not file.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.slow
def test_a_normal_end_is_one_even_where_processes_end_at_different_times(tmp_path):
    status, out, err = run(tmp_path, "end_at_different_times", count=2)
    assert status == 0, err
    lines = sorted(line for line in out.splitlines() if "Gloo" not in line)
    assert lines == ["[0] done", "[0] without a line", "[1] done", "[1] without a line"]


@pytest.mark.parametrize("way", ["sys.exit", pytest.param("os._exit", marks=pytest.mark.slow)])
def test_a_process_that_ends_while_another_one_waits_for_it_is_named(tmp_path, way):
    status, out, err = run(tmp_path, "leave_early", way)
    assert status == 1 and "done" not in out
    assert err.splitlines()[-1] == "phalanx: launch: process 1 ended before the others; the others were ended."
    said = {
        "sys.exit": "process 1 has ended early, and process 0 has stood still for 2 s since.",
        "os._exit": "process 1 no longer responds.",
    }
    assert f"[0] phalanx: {said[way]} Process 0 ends, too." in err.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["compute", "wait for a program"])
def test_a_process_that_works_on_after_the_others_is_left_alone(tmp_path, way):
    status, out, err = run(tmp_path, "leave_early", way)
    assert status == 0, err
    assert sorted(line for line in out.splitlines() if "Gloo" not in line) == ["[0] done", "[1] done"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "way, status, said",
    [
        ("raise", 1, "process 3 ended with status 1"),
        ("exit", 1, "process 3 ended with status 1"),
        ("SIGKILL", 137, "process 3 was ended by SIGKILL"),
        ("SIGSTOP", 128 + signal.SIGSTOP, "process 3 was stopped by a signal"),
        ("SIGSTOP of the first", 128 + signal.SIGSTOP, "process 0 was stopped by a signal"),
    ],
)
def test_a_failure_of_one_ends_all_four_in_time(tmp_path, way, status, said):
    process = start(tmp_path, "fail", way, count=4)
    for number in range(4):
        wait_for(tmp_path / f"fails-{number}", process)
    began = time.monotonic()
    _, err = process.communicate(timeout=100)
    assert time.monotonic() - began < END_SECONDS
    assert process.returncode == status
    assert err.splitlines()[-1] == f"phalanx: launch: {said}; the others were ended."
    if way == "raise":
        assert "[3] ValueError: boom" in err and "] phalanx: process 3 failed: ValueError: boom. Process " in err


@pytest.mark.slow
def test_a_failed_launch_starts_again_as_often_as_asked(tmp_path):
    status, _, err = run(tmp_path, "fail", "exit", options=("--restarts", "1"))
    ours = [line for line in err.splitlines() if line.startswith("phalanx: launch")]
    failed = "phalanx: launch: process 1 ended with status 1; the others were ended."
    assert status == 1 and ours == [failed, "phalanx: launch: restart 1 of 1.", failed]
    assert "[1] no such file" in err


@pytest.mark.slow
def test_differences_between_processes_are_named_in_all(tmp_path):
    status, out, err = run(tmp_path, "differ")
    assert status == 0, err
    for number in (0, 1):
        said = dict(line[4:].split(": ", 1) for line in out.splitlines() if line.startswith(f"[{number}] "))
        assert "they differ: the content of data 'y' differs in process 1. Give each" in said["data"]
        assert "data 'x' is float32 (21, 2) in process 0 and float32 (20, 2) in process 1;" in said["shape"]
        assert "they differ: the model, or a value that it reads, differs in process 1." in said["value"]
        assert "kernel is hmc(num_steps=3, step_size=None) in process 0 and hmc(num_steps=4," in said["kernel"]
        assert "seed is 0 in process 0 and 1 in process 1." in said["seed"]
        assert said["rows"] == "accepted"


@pytest.mark.slow
def test_a_call_of_one_process_alone_is_refused_in_words(tmp_path):
    status, out, err = run(tmp_path, "alone")
    assert status == 0, err
    for number in (0, 1):
        said = [line for line in out.splitlines() if line.startswith(f"[{number}] ") and "Gloo" not in line]
        assert "they differ: the call is phx.mcmc in process 0 and phx.fit in process 1. Give each" in said[0]
        assert len(said) == 2 - number
        if number == 0:
            assert "phx.mcmc: process 1 has ended, and all processes must make this call together." in said[1]


def test_differences_name_values_and_processes():
    one = {"seed": "0", "the content of data 'y'": "a", "rows 0:5 of data 'x'": "b"}
    assert differences([one, one]) == ""
    assert differences([one, {"seed": "0", "the content of data 'y'": "a"}]) == ""  # has other rows
    other = {**one, "seed": "1", "the content of data 'y'": "c", "rows 0:5 of data 'x'": "d"}
    assert differences([one, other, one, other]) == (
        "seed is 0 in process 0, 2 and 1 in process 1, 3; the content of data 'y' differs in process 1, 3; rows 0:5 of "
        "data 'x' differs in process 1, 3"
    )
    assert (
        differences([{"the call": "a", "seed": "0"}, {"the call": "b"}])
        == "the call is a in process 0 and b in process 1"
    )
    assert differences([{}, {"seed": "1"}]) == "seed is not given in process 0 and 1 in process 1"


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_saves_and_the_same_command_goes_on(tmp_path, sign):
    status, _, err = run(tmp_path, "sample", "whole", options=("--devices-per-process", "2"))
    assert status == 0, err
    process = start(tmp_path, "sample", "part", "0.2", options=("--devices-per-process", "2"))
    wait_for(tmp_path / "part.sampling", process)
    process.send_signal(sign)
    _, err = process.communicate(timeout=100)
    if sign == signal.SIGTERM:
        assert process.returncode == 143 and "phalanx: launch: ended by SIGTERM." in err
        assert not (tmp_path / "part-0.npz").exists()
    else:
        assert process.returncode == 0  # the script goes on with the draws so far
        assert len(np.load(tmp_path / "part-0.npz")["b"][0]) < 20_000
    assert (tmp_path / "part").is_dir()
    status, _, err = run(tmp_path, "sample", "part", options=("--devices-per-process", "2"))
    assert status == 0, err
    for number in (0, 1):
        whole, part = np.load(tmp_path / "whole-0.npz"), np.load(tmp_path / f"part-{number}.npz")
        np.testing.assert_array_equal(whole["b"], part["b"])
    shown = {line[:3] for line in err.splitlines() if "chains x" in line or "compiling" in line}
    assert shown == {"[0]"}  # progress


@pytest.mark.slow
def test_a_process_that_leaves_a_run_that_is_saved_ends_all_in_time(tmp_path):
    process = start(tmp_path, "leave", "run")
    wait_for(tmp_path / "run.left", process)
    began = time.monotonic()
    _, err = process.communicate(timeout=100)
    assert time.monotonic() - began < END_SECONDS
    assert process.returncode == 1 and "[1] had enough" in err


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_rows_over_processes_give_what_one_process_draws(tmp_path, count):
    scenario, shape = SCENARIOS["data"]
    one = scenario(phx.make_mesh(**shape))  # pyright: ignore[reportArgumentType]
    options = ("--devices-per-process", str(4 // count))
    status, _, err = run(tmp_path, "rows", "rows", count=count, options=options)
    assert status == 0, err
    for number in range(count):
        several = np.load(tmp_path / f"rows-{number}.npz")
        for name in one:
            np.testing.assert_allclose(several[name], one[name], rtol=2e-3, atol=2e-3)


def test_variables_of_the_environment_belong_together_and_are_numbers(monkeypatch):
    monkeypatch.setenv("PHALANX_NUM_PROCESSES", "2")
    with pytest.raises(ValueError, match="belong together"):
        phx.initialize()
    monkeypatch.setenv("PHALANX_PROCESS_ID", "first")
    with pytest.raises(ValueError, match="initialize: PHALANX_PROCESS_ID='first' must be a whole number."):
        phx.initialize()
