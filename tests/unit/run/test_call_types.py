"""Arguments under a wrong name, or in the wrong call, are refused by a type checker before anything runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx as phx

WRONG = """
import phalanx as phx

def m() -> None: ...

phx.compile(m, num_warmups=3)
phx.compile(m, num_warmup=3)
phx.compile(m, seed=1)
phx.compile(m, check="strict")
phx.mcmc(m, num_warmups=3)
phx.mcmc(m, tile=3)
phx.stream(m, until=phx.until(ess=400))
phx.compile(m).run(1, keep=[])
phx.compile(m).run(1, num_chains=4)
"""
RIGHT = """
sampler = phx.compile(m, {}, kernel=phx.nuts(), num_chains=4, keep=[], matmul_precision="float32")
sampler.run(1, {}, num_warmup=3, num_samples=5, thin=1, until=phx.until(ess=400), init="prior", progress=False)
phx.mcmc(m, {}, num_chains=4, num_warmup=3, seed=1, reducers={}, on_block=print)
phx.stream(m, {}, num_chains=4, num_warmup=3, seed=1, keep="x", thin=2)
"""


@pytest.mark.slow
def test_a_type_checker_refuses_arguments_in_the_wrong_place(tmp_path):
    (tmp_path / "calls.py").write_text(WRONG + RIGHT)
    source = str(Path(phx.__file__).parents[1])
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"include": ["calls.py"], "extraPaths": [source]}))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(tmp_path), "--outputjson"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["generalDiagnostics"]
    refused = [entry["range"]["start"]["line"] + 1 for entry in found if entry["rule"] == "reportCallIssue"]
    wrong = [number for number, line in enumerate(WRONG.splitlines(), 1) if line.startswith("phx.")]
    assert refused == wrong and len(found) == len(wrong)
