"""The command `phalanx`: thin commands over public functions."""

from __future__ import annotations

import sys

try:
    import typer
except ModuleNotFoundError as missing:
    sys.exit(f"phalanx: error: {missing.name} is needed here and is not installed: pip install 'phalanx[cli]'")

from phalanx.cli.demo import demo
from phalanx.cli.info import info
from phalanx.cli.sample import sample

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Probabilistic programming for many chains.")
for _command in (sample, demo, info):
    app.command()(_command)


def main() -> None:
    """Run the command; a user's mistake is one line on standard error, and exit status 2."""
    try:
        app(standalone_mode=False)
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        _fail(str(error))
    except Exception as error:
        if not hasattr(error, "format_message"):  # Click's errors about arguments have it; all else is ours to mend
            raise
        _fail(error.format_message())  # pyright: ignore[reportAttributeAccessIssue]


def _fail(message: str) -> None:
    print(f"phalanx: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
