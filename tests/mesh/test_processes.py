"""Two real processes on one machine: the same script in both gives each the draws of one process."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from tests.mesh import in_processes
from tests.mesh.in_processes import SCENARIOS

import phalanx as phx

SCRIPT = Path(__file__).parent / "in_processes.py"


def start(count: int, folder: Path, *names: str) -> list[dict[str, dict[str, np.ndarray]]]:
    """What each of so many processes found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [str(count), str(port), str(folder), *names]
    processes = [
        subprocess.Popen([sys.executable, str(SCRIPT), str(number), *arguments], stderr=subprocess.PIPE, text=True)
        for number in range(count)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=1200)
        assert process.returncode == 0, errors[-3000:]
    return [{name: dict(np.load(folder / f"{name}-{count}-{number}.npz")) for name in names} for number in range(count)]


def agree(one, other, tolerance):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(other[name], one[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    "count, names",
    [
        (2, ("data", "members")),
        pytest.param(2, ("chains", "centred", "fit", "fits", "rows_of_members"), marks=pytest.mark.slow),
        pytest.param(4, ("chains", "fits", "members", "rows_of_members"), marks=pytest.mark.slow),
    ],
)
def test_processes_find_what_one_finds(count, names, tmp_path):
    found = start(count, tmp_path, *names)
    for name in names:
        run, shape = SCENARIOS[name]
        agree(run(phx.make_mesh(**shape)), found[0][name], 2e-3)  # sums are added in another order
        for other in found[1:]:
            agree(found[0][name], other[name], 0)


@pytest.mark.slow
def test_one_process_continues_what_two_saved(tmp_path, monkeypatch):
    (found, _) = start(2, tmp_path, "fits", "members")
    monkeypatch.setattr(in_processes, "FOLDER", tmp_path)
    for name in ("fits", "members"):  # complete, so that each reads its save and makes no step
        run, shape = SCENARIOS[name]
        agree(run(phx.make_mesh(**shape)), found[name], 2e-3)
    longer = in_processes.members(phx.make_mesh(chain=2), epochs=3)
    assert (tmp_path / "log.csv").read_text().count("\n") == 4
    monkeypatch.setattr(in_processes, "FOLDER", None)
    agree(in_processes.members(phx.make_mesh(chain=2), epochs=3), longer, 2e-3)


@pytest.mark.slow
def test_decisions_are_taken_once(tmp_path):
    """An end by the clock, and Ctrl-C in the second process."""
    first, second = start(2, tmp_path, "folded", "interrupted")
    agree(first["folded"], second["folded"], 0)
    for found in (first, second):
        assert found["interrupted"]["interrupted"] and found["interrupted"]["more"] == 10


def test_what_belongs_together_is_given_together():
    with pytest.raises(ValueError, match="belong together"):
        phx.initialize("127.0.0.1:1234", num_processes=2)


def test_initialize_takes_the_name_that_jax_has_and_refuses_what_nobody_knows(monkeypatch):
    asked = []
    monkeypatch.setattr(jax.distributed, "initialize", _recording(asked))
    assert phx.initialize(coordinator_address="10.0.0.1:1234", num_processes=2, process_id=0) == 0
    assert asked == [("10.0.0.1:1234", 2, 0)]
    with pytest.raises(TypeError, match="no option 'coordinator_adress'. Besides coordinator_address, .* takes"):
        phx.initialize(coordinator_adress="10.0.0.1:1234", num_processes=2, process_id=0)
    with pytest.raises(ValueError, match="are one and the same"):
        phx.initialize("a:1", 2, 0, coordinator_address="b:1")
    assert len(asked) == 1


def _recording(asked):
    def initialize(
        coordinator_address=None, num_processes=None, process_id=None, coordinator_bind_address=None,
        heartbeat_timeout_seconds=100,
    ):  # fmt: skip
        asked.append((coordinator_address, num_processes, process_id))

    return initialize
