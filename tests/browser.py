"""Chromium without a window, for tests that look at pages."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--enable-logging=stderr",
)  # fmt: skip


def need_browser() -> None:
    """Skip a test, aloud, where there is no browser."""
    if BROWSER is None:
        pytest.skip("no Chromium is installed: the page was not looked at in a browser")


def measured(page: Path, profile: Path, *options: str, seconds: int, timeout: int = 300) -> tuple[Any, list[str]]:
    """Open a page whose script writes JSON to the attribute `data-measured`; return it, and what the console logged.

    Args:
        page: the page.
        profile: an empty folder for the browser.
        options: further options.
        seconds: time that passes on the page, which may be longer than the test takes.
        timeout: the most seconds that the browser may take.
    """
    assert BROWSER is not None
    budget = f"--virtual-time-budget={1000 * seconds}"
    command = [BROWSER, *OPTIONS, budget, f"--user-data-dir={profile}", *options, "--dump-dom", page.as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    found = re.search(r'data-measured="([^"]*)"', run.stdout)
    assert found, run.stderr[-2000:]
    return json.loads(unescape(found[1])), [line for line in run.stderr.splitlines() if "CONSOLE" in line]
