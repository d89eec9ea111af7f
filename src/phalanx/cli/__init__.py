"""Command line `phalanx`: thin wrappers of public functions, one for each command.

In: arguments, data files and the user's Python files. Out: printed lines, folders of results and an exit status. Read
`sample.py` first.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from phalanx.cli.bench import bench
from phalanx.cli.demo import demo
from phalanx.cli.fit import fit
from phalanx.cli.info import info
from phalanx.cli.interruption import STATUS, Interrupted, explain_interrupt
from phalanx.cli.launch import SETTINGS, launch
from phalanx.cli.maximize import maximize
from phalanx.cli.predict import predict
from phalanx.cli.resume import resume
from phalanx.cli.sample import sample
from phalanx.cli.saved import report, summary, watch
from phalanx.mesh.interrupts import listen
from phalanx.mesh.output import STDERR, STDOUT, guarded_streams
from phalanx.run.describe import versions

NO_FILE = "no file was written."

app = typer.Typer()
for _command in (sample, fit, maximize, predict, summary, report, watch, resume, demo, bench, info):
    app.command()(_command)
app.command(context_settings=SETTINGS)(launch)


@app.callback(invoke_without_command=True)
def phalanx(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Probabilistic programming for many chains."""
    if version:
        STDOUT.say(f"phalanx {versions()['phalanx']}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        STDOUT.say(context.get_help())


def main() -> None:
    """Run the command: a user's mistake prints one line on standard error, status 2; Ctrl-C has status 130."""
    listen()
    with guarded_streams():
        _run()


def _run() -> NoReturn:
    try:
        with explain_interrupt(NO_FILE):
            status = app(standalone_mode=False)
    except Interrupted as stopped:
        _stop(str(stopped))
    except typer.Abort:
        _stop(NO_FILE)
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        _fail(str(error))
    except Exception as error:
        if not hasattr(error, "format_message"):  # Click's errors about arguments have it; other errors are bugs
            raise
        _fail(error.format_message())  # pyright: ignore[reportAttributeAccessIssue]
    else:
        if status == STATUS:  # Typer reports Ctrl-C so
            _stop(NO_FILE)
        sys.exit(status if isinstance(status, int) else 0)


def _stop(message: str) -> NoReturn:
    STDERR.say(f"phalanx: interrupted: {message}")
    sys.exit(STATUS)


def _fail(message: str) -> NoReturn:
    STDERR.say(f"phalanx: error: {' '.join(message.split())}")
    sys.exit(2)
