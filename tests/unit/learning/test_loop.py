"""The loop of gradient steps: it ends where its method is done, or is stopped, and keeps the last whole state."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import pytest

from phalanx.learning.loop import EndOfData, Loop, Stop
from phalanx.mesh.failure import AgreedExit, AgreedInterrupt
from phalanx.run.progress.display import Silent
from phalanx.run.progress.report import RunReport


class Said(Silent):
    def __init__(self):
        self.lines, self.shown = [], []

    def show(self, report):
        self.shown.append(report.done)

    def say(self, line):
        self.lines.append(line)


class Counting(NamedTuple):
    """Counts to ten in blocks of three; at one number it raises, once that number was yielded."""

    at: int = -1
    error: type[BaseException] = KeyboardInterrupt

    def init(self, start):
        return start

    def step(self, state, say):
        for number in range(state + 1, min(state + 3, 10) + 1):
            yield number
            if number == self.at:
                raise self.error
        if state == 3:
            say("six")

    def done(self, state):
        return state == 10

    def report(self, state):
        return RunReport("counting", state, 10, 1, 1.0, 0)

    def stop(self, state, reason):
        return "" if reason is Stop.TIME else f"{reason.name} at {state}"


def run(method, seconds=None):
    loop, display, looked = Loop(method, method.init(0)), Said(), []
    blocks = list(loop.blocks(display, [lambda report: looked.append(report.done)], seconds))
    assert display.shown == looked == blocks
    return loop, display, blocks


@pytest.mark.parametrize(
    "error, stops",
    [(SystemExit, False), (AgreedExit, True), (KeyboardInterrupt, False), (AgreedInterrupt, True)],
)
def test_one_of_several_processes_does_not_stop_the_method_where_it_leaves_alone(monkeypatch, error, stops):
    stopped = []

    class Recording(Counting):
        def stop(self, state, reason):
            stopped.append((state, reason))

    monkeypatch.setattr("jax.process_count", lambda: 2)
    monkeypatch.setattr("phalanx.learning.loop.Interrupts.agree", lambda self, after=None: None)
    with contextlib.suppress(BaseException):
        run(Recording(at=5, error=error))
    assert bool(stopped) == stops


def test_it_ends_where_the_method_is_done():
    loop, display, blocks = run(Counting())
    assert (loop.state, loop.stopped, blocks, display.lines) == (10, None, [3, 6, 9, 10], ["six"])
    assert list(loop.blocks(display)) == []


@pytest.mark.parametrize("error, reason", [(KeyboardInterrupt, Stop.INTERRUPTED), (EndOfData, Stop.DATA)])
def test_within_a_block_the_last_whole_state_is_kept(error, reason):
    loop, display, blocks = run(Counting(5, error))
    assert (loop.state, loop.stopped, blocks, display.lines) == (5, reason, [3], [f"{reason.name} at 5"])


def test_time_is_looked_at_between_blocks():
    loop, display, blocks = run(Counting(), seconds=0.0)
    assert (loop.state, loop.stopped, blocks, display.lines) == (0, Stop.TIME, [], [])


def test_another_error_is_passed_on_and_the_state_kept():
    method = Counting(5, ValueError)
    loop = Loop(method, 0)
    with pytest.raises(ValueError):
        list(loop.blocks(Silent()))
    assert loop.state == 5 and loop.stopped is None
