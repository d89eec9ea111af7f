"""The page on the command line: its commands run on its files, and it leaves no option out."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main
from tests.test_docs import ROOT, blocks

import phalanx as phx
from phalanx import cli

PAGE = (ROOT / "docs" / "command-line.md").read_text()
LINES = [line for _, text in blocks(PAGE, {"sh"}) for line in text.replace("\\\n", " ").splitlines()]
COMMANDS = [shlex.split(line)[1:] for line in LINES]
SMALL = ("--chains", "8", "--warmup", "60", "--draws", "60")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, language in (("houses.py", "python"), ("houses.csv", "text")):
        (tmp_path / name).write_text(blocks(PAGE, {language})[0][1])
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_of_the_page_runs(phalanx, files: Path, command: list[str]) -> None:
    # The tests' process has eight devices already.
    command = re.sub("--devices 2", "--devices 8", " ".join(command)).split()
    status, out, err = phalanx(*command, *SMALL)
    assert status == 0, err
    assert "left out, since the model does not ask for it: street" in out and "ood to use" in out
    folder = files / (command[command.index("--out") + 1] if "--out" in command else "out/prices")
    made = {path.name for path in folder.iterdir()}
    draws = "run.zarr" if "--store" in command else "posterior.npz"
    assert {"report.html", draws, "summary.csv", "result.json", "traces.png"} <= made
    # The data were made with 2.6 per square metre; the posterior sd is about 0.1.
    assert abs(phx.open(folder / draws).draws["per_metre"].mean() - 2.6) < 0.6


def test_the_page_names_every_option() -> None:
    command = typer.main.get_command(cli.app).commands["sample"]  # pyright: ignore[reportAttributeAccessIssue]
    options = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    assert options - {"--help"} == set(re.findall(r"--[a-z-]+(?=[ `,])", PAGE[PAGE.index("## Options") :]))
