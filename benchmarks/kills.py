"""Faults of a run with `checkpoint=` and `store=`: kill -9, damaged files, the time of saves, and that to resume.

Kills fall at random moments, a third of them within a few milliseconds of the begin of a save; the same call is then
repeated until it ends, and its draws are compared bit for bit with those of a run that was never interrupted. The draws
of every other of these runs are in a store. Blocks and the time between saves are short, so that there are many of
both. A damage is a flipped bit, a
truncation or a deletion of one file of a folder whose run was interrupted; the call is repeated in the same way.

The parts may be run apart, by `--only`; the other parts of the results are kept.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side
from saves_cost import SIGMA, Y, overhead, schools, share

PHASES = "start", "warm-up", "sampling", "end"
"""Phases of a run in which a kill may fall, by number."""

SIZES = {"num_chains": 4, "num_warmup": 150, "num_samples": 2_000, "seed": 5}
AT_START, AT_SAVES = 0.2, 0.3
"""Shares of the kills that fall before the first block, and that wait for the begin of a save."""

IN_A_ROW = 4
"""Most kills of one run."""

FILES_OF_DRAWS = 3
"""Files of draws in the folder that is damaged."""

MOST_ABOVE = 1.0
"""Seconds by which a resumed run may be later at its first draw than a run from the start, with a warm cache."""

# -- one run -----------------------------------------------------------------------------------------------------------


class Marks:
    """Numbers that a process of a run shares with the process that kills it: its phase, and saves under way."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self.phase, self.saving = context.RawValue("i", 0), context.RawValue("i", 0)


def run(
    folder: Path | None,
    on_block: Callable[[Any], None] | None = None,
    marks: Marks | None = None,
    *,
    every: float = 0.05,
    store: bool = False,
    mesh: Any = None,
    **changes: int,
) -> Any:
    """Return the posterior of a run with short blocks, saved after so many seconds; sizes may be changed.

    `store` is true for a run whose draws are in a store beside the folder, which shows readers all draws at once.
    """
    import jax

    import phalanx as phx
    from phalanx.run.host import draw_store

    sizes: dict[str, Any] = SIZES | changes
    chains = sizes.pop("num_chains")
    mesh = mesh or phx.make_mesh(devices=jax.devices()[:1])
    sampler = phx.compile(schools, {"y": Y, "sigma": SIGMA}, num_chains=chains, mesh=mesh)
    block_length = sampler.executables.block_length
    block_length.learn(1, 0.02)  # blocks of some twenty ticks, all of them
    block_length.learn = lambda ticks, seconds: None
    if marks is not None:
        _mark_saves(marks)
    saves = None if folder is None else phx.checkpoint(folder, seconds=every)
    if store:
        draw_store.SECONDS = 0.0
        sizes["store"] = store_beside(folder)
    return sampler.run(**sizes, checkpoint=saves, on_block=on_block, progress=False)


def store_beside(folder: Path | None) -> Path:
    """Return the path of the store of a run."""
    assert folder is not None
    return folder.with_suffix(".zarr")


def _mark_saves(marks: Marks) -> None:
    from phalanx.store.saves import Saves

    write = Saves.write

    def marked(self: Saves, *arguments: Any, **options: Any) -> None:
        marks.saving.value = 1
        try:
            write(self, *arguments, **options)
        finally:
            marks.saving.value = 0

    setattr(Saves, "write", marked)  # noqa: B010, type checkers refuse an assignment to a method


def arrays_of(posterior: Any) -> list[np.ndarray]:
    """Return all that a run made: draws, statistics, the record of warm-up, the number of gradients."""
    import jax

    parts = dict(posterior.draws), dict(posterior.stats), posterior.warmup
    return [*map(np.asarray, jax.tree.leaves(parts)), np.asarray(posterior.timing.gradient_evaluations)]


def are_equal(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    """Return True if arrays are equal bit for bit."""
    same = (x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))
    return all(same)


def _to_the_end(folder: Path, result: Path, marks: Marks, changes: dict[str, Any]) -> None:
    """Run in a process of its own, and write what the run made."""

    def on_block(report: Any) -> None:
        marks.phase.value = 1 if report.phase.startswith("warm") else 2

    found = run(folder, on_block, marks, **changes)
    marks.phase.value = 3
    with result.with_suffix(".partial").open("wb") as opened:
        np.savez(opened, *arrays_of(found))  # pyright: ignore[reportArgumentType]
    result.with_suffix(".partial").rename(result)


# -- kills -------------------------------------------------------------------------------------------------------------


def kills(count: int, folder: Path, expected: list[np.ndarray], seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Kill runs `count` times; return the kills by phase, and the runs that ended with the same or with other draws."""
    random = np.random.default_rng(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["phalanx", "numpyro.distributions"])
    where, ends, starts, seconds, number = Counter(), Counter(), [2.0], [1.0], 0
    while where.total() < count or number:
        path, result = folder / f"run-{ends.total()}", folder / f"result-{ends.total()}.npz"
        marks, began, stores = Marks(), time.monotonic(), bool(ends.total() % 2)
        process = context.Process(target=_to_the_end, args=(path, result, marks, {**changes, "store": stores}))
        process.start()
        if where.total() < count and number < IN_A_ROW:
            if random.random() < AT_START:
                process.join(random.uniform(0.0, statistics.median(starts)))
            else:
                _await(process, marks.phase)
                starts.append(time.monotonic() - began)
                process.join(random.uniform(0.0, 1.1 * statistics.median(seconds)))
            if random.random() < AT_SAVES:
                _await(process, marks.saving)
                time.sleep(random.exponential(0.003))
            process.kill()
        process.join()
        if process.exitcode == 0:
            seconds.append(max(time.monotonic() - began - statistics.median(starts), 0.1))
            with np.load(result) as found:
                same = are_equal([found[name] for name in found.files], expected)
            ends["same" if same else "other"] += 1
            number = 0
            shutil.rmtree(path)
            shutil.rmtree(store_beside(path), ignore_errors=True)
        elif process.exitcode == -9:
            number += 1
            place = PHASES[marks.phase.value] + (", in a save" if marks.saving.value else "")
            where[place + (", with a store" if stores else "")] += 1
        else:
            raise RuntimeError(f"a run ended with status {process.exitcode}")
    return {"kills": where.total(), "where": dict(sorted(where.items())), "runs": dict(ends)}


def _await(process: Any, mark: Any) -> None:
    while process.is_alive() and not mark.value:
        time.sleep(0.0002)


# -- damages -----------------------------------------------------------------------------------------------------------


class Lost(Exception):
    """End of a run whose folder is damaged then."""


def interrupted(folder: Path, **changes: Any) -> None:
    """Leave a folder of a run that ended in the middle of sampling, with several files of draws and two saves."""

    def stop(report: Any) -> None:
        if report.phase == "sampling" and len(list(folder.glob("draws-*.npz"))) >= FILES_OF_DRAWS:
            raise Lost

    try:
        run(folder, stop, **changes)
    except Lost:
        return
    raise RuntimeError("the run ended before it was interrupted")


def damaged(folder: Path, copy: Path, count: int, seed: int = 0) -> Iterator[Path]:
    """Copy a folder `count` times with one file deleted, truncated or with one bit flipped; yield that file."""
    random = np.random.default_rng(seed)
    files = sorted(path.name for path in folder.iterdir() if path.name != "lock")
    for number in range(count):
        shutil.copytree(folder, copy)
        file = copy / files[number % len(files)]
        whole = bytearray(file.read_bytes())
        place = int(random.integers(len(whole)))
        match int(random.integers(3)):
            case 0:
                file.unlink()
            case 1:
                file.write_bytes(whole[:place])
            case _:
                whole[place] ^= 1 << int(random.integers(8))
                file.write_bytes(whole)
        yield file
        shutil.rmtree(copy)


def damages(count: int, folder: Path, expected: list[np.ndarray], seed: int = 0, **changes: Any) -> dict[str, int]:
    """Damage a folder `count` times and repeat the call; return the outcomes."""
    interrupted(folder / "whole", **changes)
    outcomes: Counter[str] = Counter()
    for file in damaged(folder / "whole", folder / "damaged", count, seed):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                same = are_equal(arrays_of(run(file.parent, **changes)), expected)
            except ValueError as error:
                is_named = file.name in str(error) and "is damaged" in str(error)
                outcomes["no good save left: refused by name" if is_named else "refused without a name"] += 1
                continue
        is_said = any(file.name in str(warning.message) for warning in said)
        how = "the save before used, aloud" if is_said else "harmless"
        outcomes[how if same else "wrong draws"] += 1
    return dict(outcomes)


# -- time to resume ---------------------------------------------------------------------------------------------------

RESUME = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import kills
def on_block(report):
    print(time.time() - float(sys.argv[3]), flush=True)
    raise SystemExit
kills.run(Path(sys.argv[2]), on_block)
"""


def resume(rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Return the row of the time from the start of a process to the end of its first block, resumed and from the start.

    The first block of the resumed run makes draws; that of the run from the start is one of warm-up.
    """
    interrupted(folder / "whole")
    times: dict[str, list[float]] = {"resumed": [], "from the start": []}
    for number in range(rounds + 1):  # the first fills the caches of the disk
        for way in times:
            path = folder / "copy"
            if way == "resumed":
                shutil.copytree(folder / "whole", path)
            command = [sys.executable, "-c", RESUME, str(Path(__file__).parent), str(path), str(time.time())]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            shutil.rmtree(path)
            if not done.stdout:
                raise RuntimeError(done.stderr)
            if number:
                times[way].append(float(done.stdout))
    row = side_by_side.compare("to the first draw", "resumed", "from the start", times, at_most=float("inf"))
    above = statistics.median(a - b for a, b in zip(times["resumed"], times["from the start"], strict=True))
    return [row | {"above_ms": round(1e3 * above, 1), "at_most": "1000 ms above", "met": above <= MOST_ABOVE}]


# -- the command -------------------------------------------------------------------------------------------------------


@contextmanager
def work_folder() -> Iterator[Path]:
    """Yield a folder for the runs, with a compilation cache of its own that this and other processes use."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PHALANX_CACHE"] = str(Path(folder) / "cache")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # a line of a thousand characters for each cached program
        yield Path(folder)


def table(found: dict[str, Any]) -> dict[str, Any]:
    """Return the table of kills and damages."""
    lines = [["kill -9", place, str(count)] for place, count in found.get("kills", {}).get("where", {}).items()]
    lines += [["runs that were killed", f"{how} draws at the end", str(count)]
              for how, count in found.get("kills", {}).get("runs", {}).items()]  # fmt: skip
    lines += [["damage", outcome, str(count)] for outcome, count in found.get("damages", {}).items()]
    return {"columns": ["fault", "where, or what came of it", "times"], "lines": lines}


def main() -> None:
    parts = "kills", "damages", "resume", "share", "overhead"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--kills", type=int, default=120)
    parser.add_argument("--damages", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way of resuming")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs with and without saves")
    parser.add_argument("--at-least", type=float, default=27.0, help="seconds of each of those")
    parser.add_argument("--results", type=Path, default=side_by_side.RESULTS, help="folder for the JSON file")
    options = parser.parse_args()
    file, watch = options.results / "kills.json", side_by_side.Watch()
    found = json.loads(file.read_text())["found"] if file.exists() else {}
    with work_folder() as folder:
        expected = arrays_of(run(None))
        measures = {
            "kills": lambda: kills(options.kills, folder, expected),
            "damages": lambda: damages(options.damages, folder, expected),
            "resume": lambda: resume(options.rounds, folder),
            "share": lambda: share(options.at_least, folder),
            "overhead": lambda: overhead(options.pairs, options.at_least, folder),
        }
        for part in options.only:
            found[part] = measures[part]()
            shutil.rmtree(folder / "whole", ignore_errors=True)
            rows = [row for part in ("overhead", "share", "resume") for row in found.get(part, ())]
            settings = {"sizes": SIZES, "only": options.only}
            side_by_side.write("kills", rows, settings, watch, options.results, found=found, table=table(found))
            print(json.dumps(found[part]))


if __name__ == "__main__":
    main()
