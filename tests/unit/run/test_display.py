"""How a run shows itself: bars on a terminal, lines elsewhere, nothing when switched off."""

from __future__ import annotations

import io
import sys
import time
from types import ModuleType
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from rich.console import Console

import phalanx as phx
from phalanx.run.progress.display import Lines, Overwritten, Silent, make_progress, waiting
from phalanx.run.progress.live import Live, counting
from phalanx.run.progress.report import RunReport

HALF = RunReport("warm-up", 50, 100, 4, 0.812, 3)
FULL = RunReport("warm-up", 100, 100, 4, 0.8, 0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_display_follows_the_stream(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert type(make_progress(False)) is Silent and type(make_progress(True)) is Lines
    for name in ("IPython", "ipykernel"):
        monkeypatch.setitem(sys.modules, name, sys)
    assert type(make_progress(True)) is Overwritten
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert type(make_progress(True)) is Live


def test_lines_tell_phase_sizes_acceptance_and_divergences(capsys):
    with Lines() as progress:
        progress.show(HALF)  # half-way, but within two seconds of the last line
        progress.show(FULL)
    assert capsys.readouterr().err.splitlines() == [" warm-up  4 chains x 100/100  acceptance 0.80"]


def test_lines_tell_the_time_left(capsys, monkeypatch):
    clock = iter([0.0, 30.0, 60.0])
    monkeypatch.setattr("phalanx.run.progress.display.time.monotonic", lambda: next(clock))
    with Lines() as progress:
        progress.show(RunReport("sampling", 0, 100, 4, 0.8, 0))
        progress.show(RunReport("sampling", 50, 100, 4, 0.812, 3))
        progress.show(RunReport("sampling", 100, 100, 4, 0.812, 3))
    assert capsys.readouterr().err.splitlines() == [
        "sampling  4 chains x 50/100  acceptance 0.81, 3 divergences, 30 s left",
        "sampling  4 chains x 100/100  acceptance 0.81, 3 divergences",
    ]


def lines_of(reports, capsys, monkeypatch, seconds=1.0):
    """The lines printed for reports that come every so many seconds."""
    clock = iter(np.arange(len(reports)) * seconds)
    monkeypatch.setattr("phalanx.run.progress.display.time.monotonic", lambda: float(next(clock)))
    with Lines() as progress:
        for report in reports:
            progress.show(report)
    return capsys.readouterr().err.splitlines()


def test_lines_grow_rare(capsys, monkeypatch):
    hour = [RunReport("sampling", done, 3600, 4, 0.8, 0) for done in range(3601)]
    lines = lines_of(hour, capsys, monkeypatch)
    assert len(lines) < 75 and lines[-1].startswith("sampling  4 chains x 3600/3600")
    done = [int(line.split(" x ")[1].split("/")[0]) for line in lines]
    assert done[0] == 2 and np.all(np.diff(np.diff(done)[:8]) >= 0)


@pytest.mark.parametrize("seconds", [0.1, 1.0, 30.0])
def test_a_phase_that_goes_on_after_its_last_draw_has_one_last_line(capsys, monkeypatch, seconds):
    last = [RunReport("warm-up", 100, 100, 4, 0.8, 0)] * 5
    then = [RunReport("sampling", done, 100, 4, 0.8, 0) for done in (50, 100)]
    lines = lines_of([HALF, *last, *then], capsys, monkeypatch, seconds)
    assert [line for line in lines if "100/100" in line] == [
        " warm-up  4 chains x 100/100  acceptance 0.80",
        "sampling  4 chains x 100/100  acceptance 0.80",
    ]


class Handle:
    """An output of a notebook cell, which counts how often it is replaced."""

    def __init__(self, shown: list[str]):
        self.shown = shown

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(bundle["text/plain"])


def test_in_a_notebook_one_output_is_replaced(capsys, monkeypatch):
    shown: list[str] = []

    def display(bundle, raw, display_id):
        assert raw and display_id and not shown
        shown.append(bundle["text/plain"])
        return Handle(shown)

    module: Any = ModuleType("IPython.display")
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr("phalanx.run.progress.display.time.monotonic", lambda: float(next(clock)))
    with Overwritten() as progress:
        progress.say("a line")
        for phase in ("warm-up", "sampling"):
            for done in range(0, 101, 10):
                progress.show(RunReport(phase, done, 100, 1, 0.8, 1 if done < 50 else 0))
    assert len(shown) == 21 and all(len(text.splitlines()) <= 3 for text in shown)
    assert "1 chain x 10/100  acceptance 0.80, 1 divergence, " in shown[1]
    assert shown[-1].splitlines() == [
        "a line", " warm-up  1 chain x 100/100  acceptance 0.80", "sampling  1 chain x 100/100  acceptance 0.80",
    ]  # fmt: skip
    assert capsys.readouterr() == ("", "")


def test_waiting_is_silent_when_switched_off_or_short(capsys, monkeypatch):
    monkeypatch.setattr("phalanx.run.progress.display.FIRST_WAIT", 0.0)
    with waiting(False, "compiling"):
        time.sleep(0.05)
    monkeypatch.setattr("phalanx.run.progress.display.FIRST_WAIT", 60.0)
    with waiting(True, "compiling"):
        pass
    assert capsys.readouterr() == ("", "")


def test_waiting_long_is_told_once_also_when_it_fails(capsys, monkeypatch):
    monkeypatch.setattr("phalanx.run.progress.display.FIRST_WAIT", 0.01)
    with pytest.raises(KeyError), waiting(True, "compiling"):
        time.sleep(0.2)
        raise KeyError
    assert capsys.readouterr().err == "compiling ...\n"


def test_waiting_counts_the_seconds_on_a_terminal():
    written = io.StringIO()
    with counting("compiling", Console(file=written, force_terminal=True, width=80)):
        time.sleep(1.2)
    assert "compiling" in written.getvalue() and "0:00:01" in written.getvalue()


@pytest.mark.slow
def test_a_model_that_is_compiled_says_so(capsys, monkeypatch):
    monkeypatch.setattr("phalanx.run.progress.display.FIRST_WAIT", 0.0)
    one = phx.make_mesh(devices=jax.devices()[:1])
    options: dict[str, Any] = dict(kernel=phx.rwmh(0.5), mesh=one)

    def model():
        phx.sample("x", dist.Normal(0.0, 1.0))

    phx.compile(model, **options)
    assert capsys.readouterr().err.count("compiling") == 1
    phx.compile(model, **options)  # compiled already
    assert capsys.readouterr().err == ""


def test_bars_on_a_terminal():
    written = io.StringIO()
    with Live(Console(file=written, force_terminal=True, width=140)) as progress:
        progress.show(HALF)
        progress.show(RunReport("sampling", 7, 10, 4, 0.9, 0))
        progress.say("a line")
    text = written.getvalue()
    for words in ("warm-up", "4 chains x 50/100", "acceptance 0.81, 3 divergences", "sampling", "7/10", "a line"):
        assert words in text


@pytest.mark.parametrize("display", [Silent, Lines])
def test_silence(display, capsys):
    if display is Silent:
        with Silent() as progress:
            progress.show(FULL)
            progress.say("nothing")
        assert capsys.readouterr() == ("", "")
    else:
        with Lines() as progress:
            progress.say("a line")
        assert capsys.readouterr() == ("", "a line\n")
