"""How a run shows itself: bars on a terminal, lines elsewhere, nothing when switched off."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from phalanx.run.live import Live
from phalanx.run.progress import Lines, Report, Silent, make_progress

HALF = Report("warm-up", 50, 100, 4, 0.812, 3)
FULL = Report("warm-up", 100, 100, 4, 0.8, 0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_chosen(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert type(make_progress(False)) is Silent and type(make_progress(True)) is Lines
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert type(make_progress(True)) is Live


def test_lines_tell_phase_sizes_acceptance_and_divergences(capsys):
    with Lines() as progress:
        progress.show(HALF)  # half-way, but within two seconds of the last line
        progress.show(FULL)
    assert capsys.readouterr().err.splitlines() == [" warm-up  4 chains x 100/100  acceptance 0.80"]


def test_lines_tell_the_time_left(capsys, monkeypatch):
    clock = iter([0.0, 30.0, 60.0])
    monkeypatch.setattr("phalanx.run.progress.time.monotonic", lambda: next(clock))
    with Lines() as progress:
        progress.show(Report("sampling", 0, 100, 4, 0.8, 0))
        progress.show(Report("sampling", 50, 100, 4, 0.812, 3))
        progress.show(Report("sampling", 100, 100, 4, 0.812, 3))
    assert capsys.readouterr().err.splitlines() == [
        "sampling  4 chains x 50/100  acceptance 0.81, 3 divergences, 30 s left",
        "sampling  4 chains x 100/100  acceptance 0.81, 3 divergences",
    ]


def test_bars_on_a_terminal():
    written = io.StringIO()
    with Live(Console(file=written, force_terminal=True, width=140)) as progress:
        progress.show(HALF)
        progress.show(Report("sampling", 7, 10, 4, 0.9, 0))
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
