"""Supervision of processes that need no JAX: prefixes, the first failure, and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from phalanx.cli import supervision
from phalanx.cli.supervision import Failure, Supervised

NUMBER = "import os, signal, sys, time\nnumber = int(os.environ['PHALANX_PROCESS_ID'])\n"


def supervised(script: str, count: int = 2, **environment: str) -> Supervised:
    return Supervised([sys.executable, "-c", NUMBER + script], count, {**os.environ, **environment})


def test_each_line_has_the_number_of_its_process_and_proxies_are_gone(capfd):
    script = "print(os.environ.get('http_proxy'))\nprint('warning', file=sys.stderr)\nprint('é', end='')"
    assert supervised(script, http_proxy="http://proxy").wait() is None
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0] None", "[0] é", "[1] None", "[1] é"]
    assert sorted(err.splitlines()) == ["[0] warning", "[1] warning"]


@pytest.mark.parametrize(
    "end, failure",
    [
        ("sys.exit(3)", Failure(1, "ended with status 3", 3)),
        ("os.kill(os.getpid(), signal.SIGKILL)", Failure(1, "was ended by SIGKILL", 137)),
        ("os.kill(os.getpid(), 40)", Failure(1, "was ended by signal 40", 168)),
        ("os.kill(os.getpid(), signal.SIGSTOP)", Failure(1, "was stopped by a signal", 128 + signal.SIGSTOP)),
    ],
)
def test_the_first_failure_ends_all(monkeypatch, end, failure):
    monkeypatch.setattr(supervision, "STOPPED_SECONDS", 0.5)
    began = time.monotonic()
    assert supervised(f"if number == 1: {end}\ntime.sleep(60)").wait() == failure
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "end, failure",
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", Failure(1, "was ended by SIGKILL", 137)),
        ("os._exit(0)", Failure(1, "ended before the others", 1)),
    ],
)
def test_one_that_spins_is_ended_when_another_has_died(monkeypatch, end, failure):
    monkeypatch.setattr(supervision, "ALONE_SECONDS", 0.3)
    monkeypatch.setattr(supervision, "GRACE_SECONDS", 0.3)
    spin = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass"
    processes = supervised(f"if number == 1: {end}\n{spin}")
    assert processes.wait() == failure
    assert all(process.poll() is not None for process in processes._processes)


def test_the_cause_is_named_and_not_those_that_it_ended(monkeypatch, tmp_path):
    assert supervised("if number == 1: time.sleep(0.5)\nsys.exit(7 if number else 75)").wait() == Failure(
        1, "ended with status 7", 7
    )
    monkeypatch.setattr(supervision, "CAUSE_SECONDS", 1.0)
    # The first process waits for the second, which a loaded machine takes seconds to start.
    script = f"""
if number == 1:
    open({str(tmp_path / "ended")!r}, "w").close()
    os._exit(0)
while not os.path.exists({str(tmp_path / "ended")!r}):
    time.sleep(0.05)
sys.exit(75)"""
    assert supervised(script).wait() == Failure(1, "ended before the others", 1)
    assert supervised("sys.exit(75)").wait() == Failure(0, "ended with status 75", 75)


def test_one_that_ignores_sigterm_is_killed(monkeypatch):
    monkeypatch.setattr(supervision, "GRACE_SECONDS", 0.3)
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(0.5)\nif number: sys.exit(1)\ntime.sleep(60)"
    assert supervised(script).wait() == Failure(1, "ended with status 1", 1)


def test_a_signal_is_passed_on_once():
    script = "signal.signal(signal.SIGINT, lambda *_: sys.exit(0))\ntime.sleep(60)"
    processes = supervised(script)
    threading.Timer(1.0, lambda: processes.pass_on(signal.SIGINT)).start()
    assert processes.wait() is None and processes.signalled == signal.SIGINT


def test_processes_that_save_after_sigterm_are_not_ended_by_a_second_one(tmp_path, monkeypatch):
    monkeypatch.setattr(supervision, "GRACE_SECONDS", 0.1)
    script = f"""
def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1)
    open({str(tmp_path / "saved")!r} + str(number), "w")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
time.sleep(60)"""
    processes = supervised(script)
    for seconds in (1.0, 1.2):
        threading.Timer(seconds, lambda: processes.pass_on(signal.SIGTERM)).start()
    assert processes.wait() is None and len(list(tmp_path.iterdir())) == 2


def test_launch_refuses_wrong_options(phalanx):
    status, _, err = phalanx("launch", "-n", "2", "nothing.py")
    assert status == 2
    assert err == "phalanx: error: Invalid value for 'script': file 'nothing.py' does not exist.\n"


def test_a_process_ends_with_its_launcher():
    reading, writing = os.pipe()
    script = (
        "import os\nfrom phalanx.cli.launched_script import _end_with_launcher\n"
        "_end_with_launcher(int(os.environ['END']))"
    )
    environment = {**os.environ, "END": str(reading)}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, pass_fds=(reading,))
    os.close(reading)
    os.close(writing)
    assert process.wait(60) == -signal.SIGTERM
