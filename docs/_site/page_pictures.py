"""Maker of the pictures that pages' own code saves: `python docs/_site/page_pictures.py [PAGE ...]` runs the pages."""

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
PAGES = ("quick-start", "many-data-sets", "centring")


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
    ends = [number for number, line in enumerate(lines) if line.startswith(("Good to use", "Usable"))]
    if ends:  # the page shows a summary with its verdict
        (DOCS / f"pictures/{page}/summary.txt").write_text("\n".join(lines[: ends[0] + 1]) + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or PAGES:
        run(name)
