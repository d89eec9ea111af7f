"""Maker of the pictures that a page's own code saves: `python docs/_site/page_pictures.py` runs the quick start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pictures import save_small
from thumbnails import STYLE

DOCS = Path(__file__).parents[1]


def run(page: str) -> None:
    """Run the Python blocks of a page; store its pictures, and what the summary prints."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "matplotlibrc").write_text(STYLE)
        (Path(folder) / "page.py").write_text("\n".join(blocks))
        environment = os.environ | {"MPLBACKEND": "agg"}
        command = [sys.executable, "page.py"]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        for picture in Path(folder).glob("*.png"):
            save_small(picture, DOCS / f"pictures/{page}/{picture.name}")
    print(done.stdout)
    lines = done.stdout.splitlines()
    last = next(number for number, line in enumerate(lines) if line.startswith(("Good to use", "Usable")))
    (DOCS / f"pictures/{page}/summary.txt").write_text("\n".join(lines[: last + 1]) + "\n")


if __name__ == "__main__":
    run("quick-start")
