"""Small pictures: PNG files of 256 colours, which keeps most below 30 kB."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

WIDEST = 900
"""Pixels: a wider picture is scaled down."""


def save_small(source: Path, target: Path) -> None:
    """Store a picture with few colours and at most `WIDEST` pixels wide."""
    picture = Image.open(source).convert("RGB")
    if picture.width > WIDEST:
        picture = picture.resize((WIDEST, round(picture.height * WIDEST / picture.width)), Image.Resampling.LANCZOS)
    target.parent.mkdir(parents=True, exist_ok=True)
    picture.quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)
