"""File format of a fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.diagnostics import Finding, Verdict
from phalanx.posterior.file import Run, run_of, write_run
from phalanx.posterior.record import RunRecord, Timing
from phalanx.store.archive import Kind, read_archive

_KIND = Kind("fit", "Fit.load", "phalanx.fit", (1,), ("params", "losses", "unsettled", "steps", "failed", "verdict"))


def write_fit(file: Path, parts: dict[str, Any], timing: Timing, record: RunRecord) -> Path:
    """Write the parts of a fit; if writing fails, the file stays as it was."""
    verdict: Verdict = parts["verdict"]
    findings, passed = [tuple(finding) for finding in verdict.findings], list(verdict.passed)
    plain = {"good": verdict.good, "headline": verdict.headline, "findings": findings, "passed": passed}
    return write_run(file, _KIND, {**parts, "verdict": plain}, timing, record)


def read_fit(path: Path) -> Run:
    """Read what `write_fit` wrote.

    Raises:
        FileNotFoundError: when the file does not exist.
        ValueError: when the file is something else, damaged, or written by a later version.
    """
    return read_archive(path, _KIND, _fit_of)


def _fit_of(parts: dict[str, Any], entries: Mapping[str, Any]) -> Run:
    plain = parts["verdict"]
    findings = tuple(Finding(*finding) for finding in plain["findings"])
    verdict = Verdict(plain["good"], plain["headline"], findings, tuple(plain["passed"]))
    return run_of({**parts, "verdict": verdict}, entries)
