"""Start of a script under `phalanx launch`: join the other processes, then run the script as Python would."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from pathlib import Path

from phalanx.cli.supervision import LIFELINE
from phalanx.mesh.output import STDERR
from phalanx.mesh.processes import fail, initialize

ORDERLY = (None, 0, 128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes with which all processes end at the same place."""


def main() -> None:
    """Join the other processes and run the script; an exit with another status is a failure, which ends all."""
    threading.Thread(target=_end_with_launcher, args=(int(os.environ.pop(LIFELINE)),), daemon=True).start()
    initialize()
    sys.argv = sys.argv[1:]
    script = Path(sys.argv[0])
    sys.path[0] = str(script.parent)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        if ended.code not in ORDERLY:
            if isinstance(ended.code, str):
                STDERR.say(ended.code)
            fail(f"ended by sys.exit({ended.code!r})", ended.code if isinstance(ended.code, int) else 1)
        raise


def _end_with_launcher(lifeline: int) -> None:
    """Wait until the launcher dies; then have this process save and end."""
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
