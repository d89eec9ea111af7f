"""Two real processes on one machine: the same script in both gives each the draws of one process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from jax._src.clusters import ClusterEnv
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
        (2, ("chains",)),
        pytest.param(2, ("data", "members"), marks=pytest.mark.slow),
        pytest.param(2, ("centred", "fit", "fits", "rows_of_members"), marks=pytest.mark.slow),
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
    first, second = start(2, tmp_path, "reduced", "interrupted")
    agree(first["reduced"], second["reduced"], 0)
    for found in (first, second):
        assert found["interrupted"]["interrupted"] and found["interrupted"]["more"] == 10


def test_coordinator_and_numbers_of_processes_are_given_together():
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
        phx.initialize("a:1", num_processes=2, process_id=0, coordinator_address="b:1")
    assert len(asked) == 1


CLUSTERS = {
    "Slurm": (
        {"SLURM_JOB_ID": "4099", "SLURM_STEP_NODELIST": "node[007-011],other", "SLURM_NTASKS": "40",
         "SLURM_PROCID": "17", "SLURM_LOCALID": "1"},
        ("node007:61443", 40, 17, [1]),
    ),
    "Open MPI": (
        {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911", "OMPI_COMM_WORLD_SIZE": "6",
         "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "2"},
        ("10.96.0.1:62624", 6, 5, [2]),
    ),
    "Kubernetes": (
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "PHALANX_COORDINATOR": "run-0.run:12321", "PHALANX_NUM_PROCESSES": "4",
         "PHALANX_PROCESS_ID": "2"},
        ("run-0.run:12321", 4, 2, None),
    ),
}  # fmt: skip


@pytest.fixture
def clusters(monkeypatch):
    """Places that processes find by JAX's own detection of clusters, in place of connecting."""
    found = []

    def initialize(
        coordinator_address=None, num_processes=None, process_id=None, local_device_ids=None,
        cluster_detection_method=None, initialization_timeout=300, heartbeat_timeout_seconds=100,
    ):  # fmt: skip
        given = coordinator_address, num_processes, process_id, local_device_ids
        if cluster_detection_method != "deactivate":
            given = ClusterEnv.auto_detect_unset_distributed_params(
                *given, cluster_detection_method, initialization_timeout
            )
        if given[0] is None:
            raise ValueError("coordinator_address should be defined.")
        found.append(given)

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    for name in list(os.environ):
        if name.startswith(("SLURM", "OMPI", "PHALANX", "KUBERNETES", "JAX_COORDINATOR")):
            monkeypatch.delenv(name)
    return found


@pytest.mark.parametrize("variables, place", CLUSTERS.values(), ids=CLUSTERS)
def test_initialize_finds_its_place_in_a_cluster(clusters, monkeypatch, variables, place):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        phx.initialize()
    assert clusters == [place]


def test_variables_of_phalanx_go_before_those_of_a_scheduler(clusters, monkeypatch):
    for name, value in {**CLUSTERS["Slurm"][0], **CLUSTERS["Kubernetes"][0]}.items():
        monkeypatch.setenv(name, value)
    phx.initialize()
    phx.initialize("10.0.0.7:1", num_processes=9, process_id=8, cluster_detection_method="slurm")
    assert clusters == [("run-0.run:12321", 4, 2, None), ("10.0.0.7:1", 9, 8, [1])]


@pytest.mark.parametrize("variables", [{}, {"SLURM_JOB_ID": "4099", "SLURM_NTASKS": "40"}], ids=["none", "no srun"])
def test_without_a_cluster_the_error_says_how_to_start(clusters, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"JAX found no cluster \(.*\). Start the script with srun .*set PHAL"):
        phx.initialize()


SLURM = """
import jax, phalanx as phx
phx.use_cpu_devices(2)
print(phx.initialize(), jax.process_count(), jax.device_count())
"""


@pytest.mark.slow
def test_tasks_of_slurm_join():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {**CLUSTERS["Slurm"][0], "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2"}
    tasks = [
        subprocess.Popen(
            [sys.executable, "-c", SLURM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **job, "SLURM_PROCID": number, "SLURM_LOCALID": number, "JAX_PLATFORMS": "cpu",
                 "JAX_COORDINATOR_PORT": str(port)},
        )
        for number in "01"
    ]  # fmt: skip
    for number, task in enumerate(tasks):
        out, errors = task.communicate(timeout=120)
        assert (task.returncode, out.split()) == (0, [str(number), "2", "4"]), errors


def _recording(asked):
    def initialize(
        coordinator_address=None, num_processes=None, process_id=None, coordinator_bind_address=None,
        heartbeat_timeout_seconds=100,
    ):  # fmt: skip
        asked.append((coordinator_address, num_processes, process_id))

    return initialize
