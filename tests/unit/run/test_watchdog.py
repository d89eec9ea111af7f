"""A run that hangs says so, and how to go on."""

from __future__ import annotations

import threading
from typing import Any

import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.run.progress import watchdog
from phalanx.run.progress.display import Silent
from phalanx.run.progress.report import RunReport
from phalanx.run.progress.watchdog import Watchdog, watched

REPORT = RunReport("sampling", 10, 100, 4, 0.8, 0)


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.event = threading.Event()

    def say(self, line: str) -> None:
        self.lines.append(line)
        self.event.set()


class Clocks:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.heard, self.now, self.used = Heard(), 0.0, 0.0
        self.dog = Watchdog(self.heard, clock=lambda: self.now, cpu_clock=lambda: self.used)

    def pass_time(self, seconds: float, busy: bool) -> None:
        for _ in range(int(seconds / 15)):
            self.now += 15
            self.used += 15 * busy
            self.dog.look()


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_a_block_that_takes_long_is_reported_once_and_again_after_another(clocks):
    clocks.now = 0.5
    clocks.dog.show(REPORT)
    clocks.pass_time(45, busy=True)
    assert not clocks.heard.lines
    clocks.pass_time(150, busy=True)
    assert clocks.heard.lines == ["phalanx: no block has ended for 60 s; the latest block took 0.5 s."]
    clocks.dog.show(REPORT)
    clocks.now += 0.5
    clocks.dog.show(REPORT)
    clocks.pass_time(60, busy=True)
    assert len(clocks.heard.lines) == 2


def test_blocks_that_always_take_long_are_not_reported(clocks):
    clocks.now = 30.0
    clocks.dog.show(REPORT)
    clocks.pass_time(585, busy=True)
    assert not clocks.heard.lines
    clocks.pass_time(15, busy=True)
    assert "for 600 s; the latest block took 30.0 s" in clocks.heard.lines[0]


@pytest.mark.parametrize("known, remedy", [(True, "install JAX 0.11.2 or later"), (False, "phx.use_cpu_devices(1)")])
def test_where_nothing_moves_it_says_what_to_do(clocks, monkeypatch, known, remedy):
    monkeypatch.setattr(watchdog, "deadlocks", lambda version: known)
    clocks.pass_time(600, busy=False)
    (line,) = clocks.heard.lines
    assert remedy in line and "no CPU time" in line and "another one may have ended" in line


def test_a_busy_run_that_stops_is_reported_again(clocks):
    clocks.pass_time(90, busy=True)
    clocks.pass_time(90, busy=False)
    first, second = clocks.heard.lines
    assert "no CPU time" not in first and "no CPU time" in second


def test_waiting_for_an_accelerator_is_not_taken_for_a_deadlock(clocks, monkeypatch):
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    clocks.pass_time(90, busy=False)
    assert clocks.heard.lines == ["phalanx: no block has ended for 60 s."]


def test_the_thread_speaks_while_the_run_waits_and_ends_with_it():
    heard = Heard()
    with Watchdog(heard, limit=0.02) as dog:
        dog.show(REPORT)
        assert heard.event.wait(60)
        assert "phalanx-watchdog" in {thread.name for thread in threading.enumerate()}
    assert "phalanx-watchdog" not in {thread.name for thread in threading.enumerate()}


def test_it_ends_with_a_run_that_fails():
    with pytest.raises(KeyError), Watchdog(Heard()):
        raise KeyError
    assert "phalanx-watchdog" not in {thread.name for thread in threading.enumerate()}


def test_a_silent_run_has_no_thread():
    silent = Silent()
    assert watched(silent) is silent


@pytest.mark.slow
def test_chains_and_fits_are_watched_in_every_phase_and_leave_no_thread(capsys, monkeypatch):
    def model():
        phx.sample("x", dist.Normal(0.0, 1.0))

    seen: list[tuple[str, bool]] = []

    def look(report: Any) -> None:
        seen.append((report.phase, "phalanx-watchdog" in {thread.name for thread in threading.enumerate()}))

    sampler = phx.compile(model, num_chains=2)
    sampler.run(0, num_warmup=5, num_samples=5, on_block=look)
    phx.fit(model, phx.guides.mean_field(), num_steps=5, until=False, on_block=look)
    assert len({phase for phase, _ in seen}) == 3 and all(watched for _, watched in seen)
    assert "phalanx-watchdog" not in {thread.name for thread in threading.enumerate()}
    seen.clear()
    sampler.run(0, num_warmup=5, num_samples=5, on_block=look, progress=False)
    assert seen and not any(watched for _, watched in seen)
