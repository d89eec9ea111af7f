"""Random damages of the files in a folder: a file lost, cut short, or with one bit flipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np


def damaged_copies(folder: Path, copy: Path, count: int, seed: int = 0) -> Iterator[Path]:
    """Make a copy of the folder with one damage, `count` times, each file in turn; each is removed after its turn."""
    rng = np.random.default_rng(seed)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for number in range(count):
        shutil.copytree(folder, copy)
        file = copy / files[number % len(files)].relative_to(folder)
        whole, kind = file.read_bytes(), int(rng.integers(3))
        place, bit = int(rng.integers(max(len(whole), 1))), 1 << int(rng.integers(8))
        file.unlink()
        if kind == 1:
            file.write_bytes(whole[:place])
        elif kind == 2:
            file.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :] if whole else b"x")
        yield copy
        shutil.rmtree(copy)
