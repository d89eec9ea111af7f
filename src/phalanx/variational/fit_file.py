"""A fit in one file: an `.npz` archive of plain arrays with a JSON entry; no pickles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phalanx.diagnostics import Finding, Verdict
from phalanx.posterior.file import read_archive, write_archive
from phalanx.posterior.record import RunRecord, Timing

_FORMAT, _VERSION = "phalanx.fit", 1
_PARTS = ("params", "losses", "unsettled", "steps", "failed", "verdict")


def write_fit(file: Path, parts: dict[str, Any], timing: Timing, record: RunRecord) -> Path:
    """Write the parts of a fit; the file holds either all of them or what it held before."""
    verdict: Verdict = parts["verdict"]
    plain = {
        "good": verdict.good, "headline": verdict.headline, "findings": [tuple(f) for f in verdict.findings],
        "passed": list(verdict.passed),
    }  # fmt: skip
    return write_archive(file, (_FORMAT, _VERSION), {**parts, "verdict": plain}, timing, record)


def read_fit(path: Path) -> tuple[dict[str, Any], Timing, RunRecord]:
    """Read what `write_fit` wrote.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when the file is something else, damaged, or written by a later version.
    """
    parts, timing, record = read_archive("Fit.load", "fit", path, _FORMAT, (_VERSION,), _PARTS)
    plain = parts["verdict"]
    findings = tuple(Finding(*finding) for finding in plain["findings"])
    verdict = Verdict(plain["good"], plain["headline"], findings, tuple(plain["passed"]))
    return {**parts, "verdict": verdict}, timing, record
