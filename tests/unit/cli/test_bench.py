"""The command that runs benchmarks: its table, its JSON, and its refusals; no test asserts a time."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx

# `phalanx.cli.bench` is the function that the module defines.
bench = import_module("phalanx.cli.bench")

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, sys
folder, rounds = sys.argv[sys.argv.index("--results") + 1], sys.argv[sys.argv.index("--rounds") + 1]
ratios = {"a": (0.5, 0.4, 0.6), "b": (2.0, 1.5, 3.0), "c": (1.0, 0.9, 1.1)}
rows = [
    {"what": what, "ours": "Phalanx", "ours_time": 1.0, "theirs": "NumPyro", "theirs_time": 2.0, "unit": "ms",
     "ratio": ratio, "middle_half": [low, high], "at_most": 1.0, "met": ratio <= 1}
    for what, (ratio, low, high) in ratios.items()
]
record = {"name": "fresh_process", "rows": rows, "settings": {"rounds": int(rounds)}}
record |= {"machine": {"cores": 3, "jax": "1.2"}, "cores_taken_by_others": 1.5, "busy": True}
open(folder + "/fresh_process.json", "w").write(json.dumps(record))
"""


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a script that writes a record at once."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "side_by_side.py").touch()
    (folder / "fresh_process.py").write_text(SCRIPT)
    monkeypatch.setattr(bench, "PLACES", (tmp_path / "missing", folder))
    return folder


def test_wins_and_losses_are_printed_and_written(phalanx, scripts: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    status, out, err = phalanx("bench", "fresh_process", "--rounds", "2", "--out", "made/bench.json")
    assert status == 0, err
    assert "1 wins, 1 losses, 1 even" in out and "cores 3, jax 1.2" in out and "kept 1.5 cores busy" in out
    lines = {row[1].strip(): row for line in out.splitlines() if len(row := line.split("│")[1:-1]) == 7}
    assert [lines[what][-1].strip() for what in "abc"] == ["win", "loss", "even"]
    (record,) = json.loads((tmp_path / "made/bench.json").read_text())["benchmarks"]
    assert record["settings"] == {"rounds": 2} and len(record["rows"]) == 3


def test_a_missing_peer_is_named_with_its_remedy(phalanx, scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "is_installed", lambda package: package != "blackjax")
    status, out, err = phalanx("bench", "chees", "fresh_process", "--rounds", "1")
    assert status == 0 and 'chees is skipped: it needs blackjax. pip install "blackjax' in out.replace("\n", " ")
    status, _, err = phalanx("bench", "chees")
    assert status == 2 and "no benchmark ran" in err


def test_refusals_name_what_there_is(phalanx, scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, err = phalanx("bench", "frsh")
    assert status == 2 and "'frsh'" in err and "many_chains: 256 chains" in err
    (scripts / "fresh_process.py").write_text("import sys; sys.exit(3)")
    status, _, err = phalanx("bench", "fresh_process")
    assert status == 2 and "fresh_process ended with exit status 3" in err
    monkeypatch.setattr(bench, "PLACES", ())
    status, _, err = phalanx("bench")
    assert status == 2 and "in a clone of the repository" in err


def test_wheel_carries_every_script_with_all_that_it_imports() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    carried = {Path(source).stem: target for source, target in wheel["force-include"].items()}
    assert all(target == f"phalanx/_benchmarks/{name}.py" for name, target in carried.items())
    assert {*bench.BENCHMARKS, "side_by_side"} <= {*carried}
    others = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {*carried}
    for name in carried:
        text = (ROOT / f"benchmarks/{name}.py").read_text()
        for other in others:
            assert f"import {other}\n" not in text and f"import {other} as" not in text
            assert f"from {other} import" not in text


def test_peers_that_are_installed_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is timed in a process of its own, and compared with a fresh process and a second run of ours."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = import_module("fresh_process")
    seconds = {script.OURS: 1.0, script.THEIRS: 2.0, script.STANLI: 4.0}
    monkeypatch.setattr(script, "find_spec", lambda package: package in ("stanli", "nutpie"))  # and no PyMC
    monkeypatch.setattr(script, "timed", lambda text, cache, *more: (seconds[text], seconds[text], seconds[text]))
    written: list[dict] = []
    monkeypatch.setattr(script.side_by_side, "write", lambda name, rows, *more: written.extend(rows))
    monkeypatch.setattr("sys.argv", ["fresh_process.py", "--rounds", "1"])
    script.main()
    ratios = {(row["what"], row["theirs"]): row["ratio"] for row in written if "NumPyro" not in row["theirs"]}
    fresh, again = ("a fresh process, warm cache", "stanli, a fresh process"), ("another seed", "stanli, another seed")
    assert ratios == {fresh: 0.25, again: 0.25} and len(written) == 9


@pytest.mark.slow
def test_a_benchmark_runs(phalanx, tmp_path: Path) -> None:
    status, out, err = phalanx("bench", "fresh_process", "--rounds", "1")
    assert status == 0, err
    (record,) = json.loads((tmp_path / "out/bench.json").read_text())["benchmarks"]
    assert {row["what"] for row in record["rows"]} >= {"a fresh process", "another seed"}
    assert record["machine"]["cores"] > 0 and "wins" in out


def test_names_that_scripts_import_from_the_package_exist() -> None:
    """Scripts import parts of the package in functions, where neither type checkers nor tests would miss a name."""
    missing = [
        f"{script.name}: {node.module}.{name.name}"
        for script in sorted((ROOT / "benchmarks").rglob("*.py"))
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "phalanx"
        for name in node.names
        if not hasattr(import_module(node.module or ""), name.name)
        and importlib.util.find_spec(f"{node.module}.{name.name}") is None
    ]
    assert not missing


def test_a_block_by_hand_makes_its_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    sizes = import_module("hmc_blocks").add_sizes(argparse.ArgumentParser(), leapfrogs=3).parse_args(["--draws", "5"])

    def model(y):
        mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(mean, 1.0), obs=y)

    run = import_module("hmc_blocks").phalanx_block(model, {"y": np.zeros(4, np.float32)}, sizes, 0.1, chain=1, data=2)
    for _ in range(2):  # a call ends when every chain has made its draws; the second goes on from the first
        run()


@pytest.mark.slow
def test_half_an_hour_of_an_accelerator_continues_where_it_ended(tmp_path: Path) -> None:
    """A part that has ended is not run again; one that failed is. On a processor the sizes are small."""
    script = [sys.executable, str(ROOT / "benchmarks/accelerator.py"), "--small", "--results", str(tmp_path), "--only"]
    parts = ["placements", "reducers", "lookups", "movielens", "many chains 0, Phalanx"]
    file = tmp_path / "accelerator.json"
    done = subprocess.run([*script, *parts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(file.read_text())
    reports = record["parts"]
    assert list(reports) == parts and not any("failed" in report for report in reports.values())
    assert len(reports["placements"]["rows"]) == 8 and len(reports["reducers"]["rows"]) == 4
    assert all(seconds > 0 for seconds in reports["movielens"]["seconds_of_a_leapfrog"].values())
    reports["lookups"] = {"failed": "no room"}
    file.write_text(json.dumps(record))
    again = subprocess.run([*script, *parts], capture_output=True, text=True, check=False)
    assert again.stdout.startswith("lookups: ") and again.stdout.count("\n") == 1
    assert json.loads(file.read_text())["parts"]["lookups"]["peak_gigabytes"] > 0


def test_parts_of_the_half_hour_that_fail_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    accelerator = import_module("accelerator")
    assert accelerator.report_of("reducers", 0.01, []) == {"failed": "took longer than 0 s"}
    assert "unrecognized arguments: --tiny" in accelerator.report_of("reducers", 60, ["--tiny"])["failed"][0]
