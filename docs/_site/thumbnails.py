"""Maker of the gallery's pictures and printed results: `python docs/_site/thumbnails.py [NAME ...]` runs the models.

Each model runs as a reader would run it, in a process of its own and a folder that is removed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pictures import save_small

FOLDER = Path(__file__).parents[1] / "gallery"
STYLE = """
figure.figsize: 5.6, 3.6
figure.dpi: 110
figure.constrained_layout.use: True
axes.spines.top: False
axes.spines.right: False
axes.edgecolor: 616e7c
axes.prop_cycle: cycler('color', ['2f6db3', 'e8873a', '3d9a74', '8f5bb5', 'c9a21f'])
font.size: 9
"""


def make(name: str) -> None:
    """Run a model, and store its picture and what it prints."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "matplotlibrc").write_text(STYLE)
        environment = os.environ | {"MPLBACKEND": "agg", "COLUMNS": "120", "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, FOLDER / f"{name}.py"]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        saved = FOLDER / f"pictures/{name}.png"
        save_small(Path(folder) / f"{name}.png", saved)
    (FOLDER / "results").mkdir(exist_ok=True)
    (FOLDER / f"results/{name}.txt").write_text("\n".join(map(str.rstrip, done.stdout.splitlines())) + "\n")
    print(f"{name}: {time.perf_counter() - began:.0f} s, {saved.stat().st_size / 1000:.0f} kB", flush=True)
    print(done.stdout, flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.py")):
        make(name)
