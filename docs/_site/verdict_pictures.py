"""Maker of the pictures of "When the verdict says no": `python docs/_site/verdict_pictures.py [TOPIC ...]`.

Each picture is of a run or fit whose verdict has the finding; a run without the finding is an error.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import findings_of_fits
import findings_of_runs
from pictures import save_small
from verdict_style import style

import phalanx as phx

FOLDER = Path(__file__).parents[1] / "pictures/findings"
PICTURES = findings_of_runs.PICTURES | findings_of_fits.PICTURES
"""By the topic of the finding."""


def make(topic: str) -> None:
    """Run, check that the verdict has the finding, and store the picture."""
    with style(), tempfile.TemporaryDirectory() as folder:
        result, figure = PICTURES[topic]()
        topics = [finding.topic for finding in result.verdict().findings]
        if topic not in topics:
            raise SystemExit(f"the verdict has no finding {topic!r}, but {topics}")
        drawn = Path(folder) / "picture.png"
        figure.savefig(drawn)
        save_small(drawn, FOLDER / f"{topic.lower().replace(' ', '-')}.png")
    print(topic, "|", topics, flush=True)


if __name__ == "__main__":
    phx.use_cpu_devices(2)
    for topic in sys.argv[1:] or PICTURES:
        make(topic)
