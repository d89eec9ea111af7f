"""The command `phalanx`: thin commands over public functions."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from phalanx.cli.demo import demo
from phalanx.cli.info import info
from phalanx.cli.interruption import STATUS, Interrupted, saying
from phalanx.cli.sample import sample
from phalanx.mesh.interrupts import listen
from phalanx.run.describe import versions

NOTHING = "nothing is written."

app = typer.Typer(add_completion=False)
for _command in (sample, demo, info):
    app.command()(_command)


@app.callback(invoke_without_command=True)
def phalanx(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Say which version this is.")] = False,
) -> None:
    """Probabilistic programming for many chains."""
    if version:
        print(f"phalanx {versions()['phalanx']}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command; a user's mistake is one line on standard error, and exit status 2; Ctrl-C is status 130."""
    listen()
    try:
        with saying(NOTHING):
            status = app(standalone_mode=False)
    except Interrupted as stopped:
        _stop(str(stopped))
    except typer.Abort:
        _stop(NOTHING)
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        _fail(str(error))
    except Exception as error:
        if not hasattr(error, "format_message"):  # Click's errors about arguments have it; all else is ours to mend
            raise
        _fail(error.format_message())  # pyright: ignore[reportAttributeAccessIssue]
    else:
        if status == STATUS:  # how Typer hands on Ctrl-C
            _stop(NOTHING)
        sys.exit(status if isinstance(status, int) else 0)


def _stop(message: str) -> None:
    print(f"phalanx: interrupted: {message}", file=sys.stderr)
    sys.exit(STATUS)


def _fail(message: str) -> None:
    print(f"phalanx: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
