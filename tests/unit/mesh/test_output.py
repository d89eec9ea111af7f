"""Output that cannot be written ends no run, and no process with an error."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.cli.supervision import Supervised
from phalanx.mesh.output import STDERR, STDOUT, guarded_streams, warn
from phalanx.report.terminal import console
from phalanx.run.progress import display
from phalanx.run.progress.live import Live, counting
from phalanx.run.progress.report import RunReport

SOURCES = Path(phx.__file__).parent


class Failing(io.StringIO):
    """Stream that raises an error at each use."""

    def __init__(self, error, is_terminal=False):
        super().__init__()
        self._error, self._is_terminal = error, is_terminal

    def write(self, text):
        raise self._error

    def flush(self):
        raise self._error

    def isatty(self):
        return self._is_terminal


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


STREAMS = {
    "full disk": lambda: Failing(OSError(28, "No space left on device")),
    "closed pipe": lambda: Failing(BrokenPipeError(32, "Broken pipe")),
    "lost terminal": lambda: Failing(OSError(5, "Input/output error"), is_terminal=True),
    "another library's": lambda: Failing(RuntimeError("reentrant call")),
    "closed": closed,
    "none": lambda: None,
}


@pytest.fixture(params=STREAMS.values(), ids=list(STREAMS))
def broken(request, monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, request.param())


def test_every_display_survives_a_stream_that_cannot_be_written(broken, monkeypatch):
    monkeypatch.setattr(display, "FIRST_WAIT", 0.0)
    report = RunReport("warm-up", 5, 10, 4, 0.8, 0)
    for shown in (display.Lines(), Live(), display.make_progress(True)):
        with shown:
            shown.show(report)
            shown.say("a line")
    with counting("compiling"), display.waiting(True, "compiling"):
        pass
    console().print("a line")
    STDOUT.say("a line")
    STDERR.say("a line")


def test_a_warning_has_its_place_and_may_be_an_error():
    with pytest.warns(UserWarning, match="a warning") as caught:
        warn("a warning")
    assert caught[0].filename == __file__
    with pytest.raises(UserWarning, match="a warning"):
        warn("a warning")  # by the filter of all tests


@pytest.mark.slow
def test_runs_and_fits_survive_a_stream_that_cannot_be_written(monkeypatch):
    def model():
        phx.sample("x", dist.Normal(0.0, 1.0))

    monkeypatch.setattr(sys, "stderr", Failing(OSError(28, "No space left on device"), is_terminal=True))
    assert phx.mcmc(model, kernel=phx.rwmh(1.0), num_warmup=5, num_samples=5, num_chains=2).num_draws == 5
    monkeypatch.setattr(sys, "stderr", Failing(BrokenPipeError(32, "Broken pipe")))
    monkeypatch.setattr(display, "FIRST_WAIT", 0.0)
    assert phx.fit(model, phx.guides.mean_field(), num_steps=4, until=False).losses.elbo.size == 4


def test_characters_that_a_stream_cannot_encode_are_escaped(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(written, encoding="ascii"))
    STDERR.say("the mean of β")
    assert written.getvalue() == b"the mean of \\u03b2\n"


@pytest.mark.parametrize("before", ["", "sys.stderr.close(); "], ids=["open", "closed"])
@pytest.mark.parametrize("redirected", ["> /dev/full", "2> /dev/full", "2> /dev/full >&2", "| true", "2>&-"])
def test_a_process_whose_text_was_lost_ends_in_order(redirected, before):
    script = f"from phalanx.mesh.output import *; {'' if '&-' in redirected else before}warn('a'); "
    script += "STDOUT.say('b'); STDERR.say('c'); STDOUT.write('d'); STDOUT.flush()"
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    command = f"'{sys.executable}' -S -c \"import sys; sys.path[:0] = {[str(SOURCES / 'mesh')]!r}; {script}\""
    command = command.replace("phalanx.mesh.output", "output")  # without the other packages, which take seconds
    ended = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} {redirected}"], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0 and "Exception ignored" not in ended.stderr


def test_in_the_command_line_the_streams_of_others_are_guarded(broken):
    before = sys.stdout, sys.stderr
    with guarded_streams():
        print("a line")
        print("a line", file=sys.stderr)
        sys.stdout.writelines(["a", "line"])
        with pytest.raises(TypeError):
            sys.stdout.write(b"bytes")  # pyright: ignore[reportArgumentType]
    assert (sys.stdout, sys.stderr) == before


def test_processes_of_a_launch_go_on_where_their_lines_cannot_be_written(monkeypatch):
    lines = "import sys\nfor number in range(20_000): print('a line of text', number)\nsys.stderr.write('end')"
    monkeypatch.setattr(sys, "stdout", Failing(OSError(28, "No space left on device")))
    assert Supervised([sys.executable, "-S", "-c", lines], 2, dict(os.environ)).wait() is None


@pytest.mark.parametrize("call", ["print(", "Console(", "warnings.warn(", "sys.stdout", "sys.stderr", "logging."])
def test_all_output_passes_through_one_file(call):
    """Every other file writes by `STDOUT`, `STDERR` or `warn`; examples in docstrings print."""
    for file in SOURCES.rglob("*.py"):
        for line in file.read_text().splitlines():
            at = line.find(call)
            if at < 0 or line[at - 1 : at].isidentifier() or line[at - 1 : at] in (".", "'", '"', "`"):
                continue
            is_example = line.strip().startswith((">>>", "..."))
            assert is_example or "file=output" in line or file.name == "output.py", (file, line)
