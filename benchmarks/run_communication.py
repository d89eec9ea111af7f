"""Bytes that devices send in a run of MCMC, read from its compiled programs, against the model of docs/scaling.md.

Programs are compiled for 1, 2, 4 and 8 virtual devices, and two real processes count what they exchange between two
blocks. Predictions for 8, 64 and 512 accelerators follow from the model, from link speeds in data sheets, and from
latencies that are assumed; no accelerator has run them.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import side_by_side
from collectives import Collective, collectives

ROWS = 16
NUTS, HMC, CHEES = "nuts", "hmc", "chees"
DEPTH, STEPS = 6, 5
"""`max_depth` of NUTS and `num_steps` of HMC."""

RANK = 128
"""Most directions of a metric that learns correlations by default."""

STATS = {HMC: 4 + 1 + 2, NUTS: 6 + 1 + 2, CHEES: 6 + 1 + 2}
"""Columns of statistics of a draw: the kernel's, the log density, and the fine parts of two of them."""

EIGHT = ((2, 4), (8, 1))
MESHES = ((1, 1), (1, 2), (1, 4), (1, 8), *EIGHT)
"""Devices along `chain` and along `data`, of different numbers; most cases have those of eight alone."""

EVERYWHERE = ("NUTS", "NUTS, a variable per row")
"""Cases on all meshes."""

EXCHANGED = ("NUTS", "NUTS, moments only")
"""Cases whose exchanges between processes are counted."""

DEVICES = (8, 64, 512)
RATES = {8: 450e9, 64: 50e9, 512: 50e9}
"""Bytes per second that one device sends: NVLink 4 within eight, InfiniBand NDR between; from the data sheets."""

LATENCY = {8: 10e-6, 64: 25e-6, 512: 40e-6}
"""Seconds that a sum of a few bytes over so many devices takes: an assumption."""

MEMORY = 3.35e12
"""Bytes per second that an H100 reads of its memory, by its data sheet."""


class Case(NamedTuple):
    """A run.

    Attributes:
        coordinates: global coordinates, those that are replicated over `data`.
        kernel: its name.
        has_rows: true if a variable has an entry for each row of the data.
        metric: "auto", "dense" or "diagonal".
        reduces: true if draws are reduced by `moments()` and not stored.
        lanes: chains on each device.
    """

    coordinates: int
    kernel: str = NUTS
    has_rows: bool = False
    metric: str = "auto"
    reduces: bool = False
    lanes: int = 2


CASES = {
    "NUTS": Case(10),
    "NUTS, 300 coordinates": Case(300),
    "HMC, 100 coordinates": Case(100, HMC, lanes=4),
    "NUTS, a variable per row": Case(10, has_rows=True),
    "HMC, a variable per row": Case(10, HMC, has_rows=True),
    "NUTS, dense metric": Case(20, metric="dense"),
    "NUTS, moments only": Case(10, metric="diagonal", reduces=True),
    "ChEES-HMC": Case(10, CHEES, lanes=4),
}

# -- the model ---------------------------------------------------------------------------------------------------------


def of_leapfrog(case: Case, chain: int, data: int) -> list[Collective]:
    """Return what the program that advances chains sends: in each leapfrog, and in the last one of a draw."""
    lanes, g, k = case.lanes, case.coordinates, case.has_rows
    over_data = {
        # the log density in two floats; kinetic energies, and turns of each depth and across halves
        NUTS: [g + 2 + k * (10 + 2 * DEPTH)],
        HMC: [g, g + 2 + 2 * k],  # the last leapfrog of a draw stands apart
        CHEES: [g, g + 2],
    }[case.kernel]
    sums = [Collective("all-reduce", 4 * lanes * numbers, data) for numbers in over_data if data > 1]
    if case.kernel == CHEES and chain > 1:  # two centres of all chains, and how many chains are good
        sums.append(Collective("all-reduce", 4 * (2 * g + 1), chain))
    return sorted(sums)


def of_round(case: Case, chain: int, data: int) -> list[Collective]:
    """Return what a round of warm-up, or a block of stored draws, sends at its end.

    Devices along `chain` gather whether all chains have their draws, ticks, and sums over statistics. Those along
    `data` add up one number for each lane, if a variable has an entry per row.
    """
    gathered = [Collective("all-gather", 8 * (2 + 3 + STATS[case.kernel]) * chain, chain)] if chain > 1 else []
    return gathered + ([Collective("all-reduce", 4 * case.lanes, data)] if case.has_rows and data > 1 else [])


def to_host(case: Case, data: int) -> dict[str, int]:
    """Return bytes from a device to its process: for each block of warm-up, and for each draw of a chain."""
    g, local, stats = case.coordinates, case.has_rows * ROWS // data, STATS[case.kernel]
    kept = {"draw": 4 * (2 * (g + local) + stats + g + local)}
    if case.reduces:  # once a round, from each chain: its number of draws, a tally, and seven numbers of the reducer
        kept = {"draw": 0, "round of reduced draws": case.lanes * (4 + 16 + 4 * (1 + 6 * (g + local)))}
    return {"sums": 8 * (3 + stats + 4 * (g + local)), **kept}


def of_tuning(case: Case, data: int) -> int:
    """Return the bytes of a metric, which each device receives after a window."""
    g, local = case.coordinates, case.has_rows * ROWS // data
    rank = {"diagonal": 0, "dense": g, "auto": min(g, RANK)}[case.metric]
    return 4 * (g + local + g * rank + rank + 1) + 1


def between_processes(case: Case, chains: int, devices: int, processes: int) -> dict[str, list[int]]:
    """Return the sizes of the arrays that all processes get in a block of rounds, or of stored draws.

    The run is over `chain` alone, and is not saved.
    """
    g, numbers = case.coordinates, 4 * chains
    block = [4, 4 * devices, numbers, 4 * processes]  # its length, ticks, draws of each chain, Ctrl-C
    sampling = [32 * processes]  # four totals over the draws of each process, which it keeps to itself
    if case.reduces:  # counts of draws, acceptance and the like; the reducer's states; the length of the next round
        sampling = [*[numbers] * 8, *[numbers * g] * 6, 4]
    return {
        "warm-up": sorted([*block, devices * to_host(case, 1)["sums"]]),
        "sampling": sorted([*block, *sampling]),
    }


def slots_of(case: Case, chains: int) -> int:
    """Return the draws of each chain for which a block has memory, given the chains of a process."""
    from phalanx.run.device.blocks import BLOCK_BYTES, BLOCK_DRAWS

    width = 4 * chains * (3 * case.coordinates + STATS[case.kernel])
    return max(1, min(BLOCK_DRAWS, BLOCK_BYTES // width))


# -- what is compiled --------------------------------------------------------------------------------------------------


def compiled(case: Case, chain: int, data: int) -> Any:
    """Return the sampler of a case on so many virtual devices."""
    import jax
    import numpyro.distributions as dist

    import phalanx as phx

    def model(x: Any, y: Any) -> None:
        mean = x @ phx.sample("w", dist.Normal(0.0, 1.0).expand([case.coordinates]))
        if case.has_rows:
            mean += phx.sample("shift", dist.Normal(0.0, 1.0).expand([x.shape[0]]))
        phx.sample("y", dist.Normal(mean, 1.0), obs=y)

    kernel = {
        NUTS: lambda: phx.nuts(max_depth=DEPTH, metric=case.metric),
        HMC: lambda: phx.hmc(num_steps=STEPS, metric=case.metric),
        CHEES: lambda: phx.chees(metric=case.metric),
    }[case.kernel]()
    x = np.random.default_rng(0).normal(size=(ROWS, case.coordinates)).astype(np.float32)
    mesh = phx.make_mesh(chain=chain, data=data, devices=jax.devices()[: chain * data])
    options = {"keep": [], "reducers": {"m": phx.reducers.moments()}} if case.reduces else {}
    return phx.compile(
        model, phx.shard({"x": x, "y": x.sum(1)}, mesh), kernel=kernel, mesh=mesh, num_chains=case.lanes * chain,
        **options,
    )  # fmt: skip


def found_in(sampler: Any) -> dict[str, Any]:
    """Return collectives and bytes of a sampler's programs, in the order of `predicted_of`."""
    import jax

    from phalanx.run.device.executables import first_tuning

    programs, blocks = sampler.executables, sampler.executables.blocks
    devices = blocks.target.mesh.size

    def sent(program: Any) -> list[Collective]:
        found = [] if program is None else collectives(program.as_text(), devices)
        return sorted(one for one in found if one.group > 1)  # a device alone sends no bytes

    def made(program: Any, leaves: Callable[[Any], Any] = lambda made: made) -> int:
        shards = (math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
                  for x in jax.tree.leaves(leaves(program.out_info)))  # fmt: skip
        return sum(shards)

    result = {"sums": made(programs.record, lambda made: made.rounds.sums)}
    if programs.constrain is not None:
        rows = made(programs.no_records, lambda made: made.states) + made(programs.constrain)
        result["draw"] = rows // (blocks.slots * blocks.count)
    else:
        result |= {"draw": 0, "round of reduced draws": made(programs.empty)}
    others = (programs.no_records, programs.constrain, programs.empty)
    specs = jax.tree.leaves(blocks.tuning_specs(first_tuning(blocks)).metric)
    shards = zip(jax.tree.leaves(first_tuning(blocks).metric), specs, strict=True)
    return {
        "in recorded draws": sent(programs.record),
        "in reduced draws": sent(programs.accumulate),
        "elsewhere": [one for program in others for one in sent(program)],
        "to the host": result,
        "metric": sum(x.nbytes // math.prod(blocks.target.mesh.shape[a] for p in spec if p for a in np.atleast_1d(p))
                      for x, spec in shards),
    }  # fmt: skip


def predicted_of(case: Case, chain: int, data: int) -> dict[str, Any]:
    """Return what the model says of a case on a mesh; on one device along `data` all coordinates are global."""
    if data == 1 and case.has_rows:
        case = case._replace(coordinates=case.coordinates + ROWS, has_rows=False)
    return {
        "in recorded draws": sorted([*of_leapfrog(case, chain, data), *of_round(case, chain, data)]),
        "in reduced draws": of_leapfrog(case, chain, data) if case.reduces else [],
        "elsewhere": [],
        "to the host": to_host(case, data),
        "metric": of_tuning(case, data),
    }


def exchanged() -> None:
    """Print the commonest sizes of what a process gets from others in a block, by phase, and what the model says."""
    import jax
    from jax.experimental import multihost_utils

    sizes: list[int] = []

    def counted(exchange: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **options: Any) -> Any:
            found = exchange(*arguments, **options)
            sizes.append(np.asarray(found).nbytes)
            return found

        return count

    for name in ("process_allgather", "broadcast_one_to_all"):
        setattr(multihost_utils, name, counted(getattr(multihost_utils, name)))
    processes, devices = jax.process_count(), jax.device_count()
    found, said = {}, {}
    for name in EXCHANGED:
        case, blocks = CASES[name], {"warm-up": Counter(), "sampling": Counter()}

        def on_block(report: Any, blocks: dict[str, Counter[tuple[int, ...]]] = blocks) -> None:
            # that about Ctrl-C follows this call, and counts with the next block
            blocks[report.phase][tuple(sorted(sizes))] += 1
            sizes.clear()

        compiled(case, devices, 1).run(num_warmup=100, num_samples=4_000, on_block=on_block, progress=False)
        chains = case.lanes * devices
        said[name] = between_processes(case, chains, devices, processes)
        # without those that copy a window's draws, or end within a round
        with_sums = [seen for seen in blocks["warm-up"] if devices * to_host(case, 1)["sums"] in seen]
        found[name] = {
            "warm-up": [*min(with_sums, key=sum)],
            "sampling": [*blocks["sampling"].most_common(1)[0][0]],
        }
    if jax.process_index() == 0:
        print(json.dumps({"processes": processes, "found": found, "model": said}), flush=True)


def of_two_processes() -> dict[str, Any]:
    """Return what `exchanged` finds in two processes."""
    command = [sys.executable, "-m", "phalanx", "launch", "-n", "2", __file__, "--exchanged"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(next(line[4:] for line in done.stdout.splitlines() if line.startswith("[0] {")))


# -- predictions -------------------------------------------------------------------------------------------------------


def in_data(coordinates: int, chains: int, kernel: str) -> list[dict[str, Any]]:
    """Return predictions for rows over all devices: a leapfrog's sum, and the rows that take ten times as long."""
    rows = []
    for devices in DEVICES:
        first, *_ = of_leapfrog(Case(coordinates, kernel, lanes=chains), 1, devices)
        seconds = LATENCY[devices] + first.sent / RATES[devices]
        rows.append({
            "coordinates": coordinates, "chains": chains, "devices": devices, "sent_by_a_device": int(first.sent),
            "microseconds": round(1e6 * seconds, 1),
            "rows_of_a_device": math.ceil(10 * seconds * MEMORY / (4 * coordinates)),
        })  # fmt: skip
    return rows


def in_chains(coordinates: int, lanes: int) -> list[dict[str, Any]]:
    """Return predictions for chains over all devices of as many processes: what each process gets."""
    rows, case = [], Case(coordinates, lanes=lanes)
    for devices in DEVICES:
        chains = lanes * devices
        slots = slots_of(case, lanes)
        sizes = between_processes(case, chains, devices, devices)
        seconds = sum(sizes["sampling"]) / RATES[devices] + len(sizes["sampling"]) * LATENCY[devices]
        rows.append({
            "coordinates": coordinates, "chains": chains, "devices": devices, "block_of_warm_up": sum(sizes["warm-up"]),
            "draws_of_a_block": slots, "block": sum(sizes["sampling"]),
            "microseconds_of_a_draw": round(1e6 * seconds / slots, 1),
        })  # fmt: skip
    return rows


def predictions() -> dict[str, list[dict[str, Any]]]:
    """Return all predictions."""
    return {
        "rows over data": [*in_data(100, 4, NUTS), *in_data(1_000_000, 1, HMC)],
        "chains over chain": in_chains(10, 256),
    }


# -- the command -------------------------------------------------------------------------------------------------------


def lines_of(predicted: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the predictions as the lines of two tables for docs/scaling.md."""
    rows = [
        f"| {one['devices']} | {one['coordinates']:,} | {one['chains']} | {one['sent_by_a_device']:,} "
        f"| {one['microseconds']:,.0f} µs | {one['rows_of_a_device']:,} |"
        for one in predicted["rows over data"]
    ]
    chains = [
        f"| {one['devices']} | {one['chains']:,} | {one['block_of_warm_up']:,} | {one['draws_of_a_block']} "
        f"| {one['block']:,} | {one['microseconds_of_a_draw']:,.1f} µs |"
        for one in predicted["chains over chain"]
    ]
    return [*rows, *chains]


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the table for README.md."""
    columns = [
        "run", "chain, data", "over data in the leapfrogs of a draw and in a round", "over chain",
        "sums to the host in a block of warm-up", "and for a draw", "as the model says",
    ]  # fmt: skip
    lines = []
    for row in rows:
        chain, data = row["mesh"]
        sent = [Collective(*one) for one in row["found"]["in recorded draws"]]
        over = [" and ".join(f"{one.size:,}" for one in sent if one.group == n and n > 1) for n in (data, chain)]
        result = row["found"]["to the host"]
        lines.append([
            row["run"], f"{chain}, {data}", over[0] or "0", over[1] or "0", f"{result['sums']:,}",
            f"{result['draw']:,}", "yes" if row["same"] else "no",
        ])  # fmt: skip
    return {"columns": columns, "lines": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=side_by_side.RESULTS, help="folder for the JSON file")
    parser.add_argument("--exchanged", action="store_true", help=argparse.SUPPRESS)  # in the two processes
    options = parser.parse_args()
    if options.exchanged:
        exchanged()
        return
    import phalanx as phx

    phx.use_cpu_devices(8)
    watch, rows = side_by_side.Watch(), []
    for name, case in CASES.items():
        for mesh in MESHES if name in EVERYWHERE else EIGHT:
            found, said = found_in(compiled(case, *mesh)), predicted_of(case, *mesh)
            rows.append({"run": name, "mesh": mesh, "found": found, "same": found == said})
            print(json.dumps(rows[-1]), flush=True)
    two, predicted = of_two_processes(), predictions()
    more = {"programs": rows, "two_processes": two, "predicted_not_measured": predicted, "table": table(rows)}
    settings = {"rows": ROWS, "max_depth": DEPTH, "num_steps": STEPS, "rates": RATES, "latency": LATENCY}
    side_by_side.write("run_communication", [], settings, watch, options.results, **more)
    print(json.dumps(two))


if __name__ == "__main__":
    main()
