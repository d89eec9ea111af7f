"""An accelerator's first half hour: whether its answers are right, then what it does in a second, and its memory.

    python benchmarks/accelerator.py

Each part runs in a process of its own, ends within its time, and is written at once to `results/accelerator.json`, with
the device's name. A second call continues: parts that have ended on this commit and device are not run again. All parts
end within thirty minutes. `--small` is for a processor: the same parts at small sizes, which show only that they run.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import side_by_side

MINUTES = 30.0
NOISE = 6.0
"""Monte-Carlo errors by which an estimate may be off: with some hundred estimates, one in a million runs is."""

Report = dict[str, Any]


class Sizes(NamedTuple):
    """Sizes of the parts."""

    draws: int
    leapfrogs: int
    rows: int
    chains: tuple[int, ...]
    steps: int
    groups: int
    users: int
    rounds: int


LARGE = Sizes(
    draws=100, leapfrogs=10, rows=581_012, chains=(10_000, 100_000), steps=20, groups=1_000, users=6_040, rounds=5
)
SMALL = Sizes(draws=2, leapfrogs=2, rows=2_000, chains=(8, 16), steps=2, groups=20, users=50, rounds=1)


# -- right answers ----------------------------------------------------------------------------------------------------


def regression() -> tuple[Any, dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return a regression with known noise, its data, and the exact mean and covariance of its coefficients."""
    import numpyro.distributions as dist

    import phalanx as phx

    random = np.random.default_rng(0)
    x = random.normal(size=(200, 3)) @ np.array([[1.0, 0.8, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 0.1]])
    y = x @ np.array([1.0, -1.0, 2.0]) + random.normal(size=200)

    def model(x: Any, y: Any) -> None:
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))
        phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    covariance = np.linalg.inv(x.T @ x + np.eye(3))
    data = {"x": x.astype(np.float32), "y": y.astype(np.float32)}
    return model, data, covariance @ x.T @ y, covariance


def kernels(sizes: Sizes) -> Report:
    """Compare means and variances of each kernel's draws with the exact ones."""
    import phalanx as phx

    model, data, mean, covariance = regression()
    rows = []
    for name in ("nuts", "hmc", "chees", "mams", "laps", "rwmh"):
        run = {"num_chains": 64, "num_warmup": 300, "num_samples": 400, "progress": False}
        posterior = phx.mcmc(model, data, kernel=getattr(phx, name)(), **run)
        draws = np.asarray(posterior.draws["w"], np.float64)
        ess = np.asarray(phx.diagnostics.ess(draws))
        squares = (draws - mean) ** 2
        of_mean = np.abs(draws.mean((0, 1)) - mean) / np.sqrt(np.diag(covariance) / ess)
        error = squares.std((0, 1)) / np.sqrt(np.asarray(phx.diagnostics.ess(squares)))
        of_variance = np.abs(squares.mean((0, 1)) - np.diag(covariance)) / error
        off = float(max(of_mean.max(), of_variance.max()))
        rows.append({"what": f"{name}: error of moments, in Monte-Carlo errors", "off": off, "right": off < NOISE})
    return {"rows": rows}


def reducers(sizes: Sizes) -> Report:
    """Compare what reducers fold on the device with the same statistics of the stored draws."""
    import phalanx as phx

    model, data, *_ = regression()
    folded = {
        "moments": phx.reducers.moments(),
        "covariance": phx.reducers.covariance(),
        "quantiles": phx.reducers.quantiles([0.1, 0.5, 0.9]),
    }
    run = {"num_chains": 16, "num_warmup": 200, "num_samples": 500, "progress": False}
    posterior = phx.mcmc(model, data, reducers=folded, **run)
    draws = np.asarray(posterior.draws["w"], np.float64)
    flat = draws.reshape(-1, 3)
    reduced = {name: posterior.reduced[name]["w"] for name in folded}
    pairs = {
        "mean": (reduced["moments"].mean, flat.mean(0)),
        "variance": (reduced["moments"].variance, flat.var(0, ddof=1)),
        "covariance": (reduced["covariance"].covariance, np.cov(flat, rowvar=False)),
        "quantiles": (reduced["quantiles"], np.quantile(flat, [0.1, 0.5, 0.9], axis=0)),
    }
    tolerated = {"quantiles": 0.05 * float(flat.std())}  # between the edges of bins they are interpolated
    rows = []
    for name, (ours, exact) in pairs.items():
        off = float(np.max(np.abs(np.asarray(ours) - np.asarray(exact))))
        right = off < tolerated.get(name, 1e-4)
        rows.append({"what": f"{name}: distance from stored draws", "off": off, "right": right})
    return {"rows": rows}


def placements(sizes: Sizes) -> Report:
    """Compare log densities of rows over all devices with those of one processor, and their gradients by energies.

    A trajectory of small steps keeps its energy if, and only if, the gradient is that of the log density.
    """
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer.util import log_density

    import phalanx as phx

    random = np.random.default_rng(1)
    count = 1_003  # of no number of devices a multiple
    data = {
        "x": random.normal(size=count).astype(np.float32),
        "y": random.normal(size=count).astype(np.float32),
        "g": random.integers(0, 7, count).astype(np.int32),
    }

    means = {
        "effects of groups": lambda a, x, g: a[g] * x,
        "the row before": lambda a, x, g: a[0] + a[1] * jnp.concatenate([x[:1], x[:-1]]),
        "running sums": lambda a, x, g: a[0] + a[1] * jnp.cumsum(x) / 30.0,
        "softmax over rows": lambda a, x, g: a[0] + count * jax.nn.softmax(a[1] * x),
    }

    def model_of(sample: Any, mean: Callable[..., Any]) -> Callable[..., None]:
        def model(x: Any, y: Any, g: Any) -> None:
            a = sample("a", dist.Normal(0.0, 1.0).expand([7]))
            sample("y", dist.Normal(mean(a, x, g), 1.0), obs=y)

        return model

    mesh = phx.make_mesh(chain=1, data=len(jax.devices()))
    rows = []
    for what, mean in means.items():
        start = {"a": 0.3 * random.normal(size=(4, 7)).astype(np.float32)}
        run = {"num_chains": 4, "num_warmup": 0, "progress": False, "mesh": mesh, "init": start}
        steps = phx.hmc(10, step_size=1e-3, step_size_jitter=0.0)
        program = model_of(phx.sample, mean)
        posterior = phx.mcmc(program, phx.shard(data, mesh), kernel=steps, num_samples=1, **run)
        with jax.default_device(jax.devices("cpu")[0]), jax.enable_x64(True):
            wide = {name: v.astype(np.float64) if v.dtype == np.float32 else v for name, v in data.items()}
            exact = [
                float(log_density(model_of(numpyro.sample, mean), (), wide, {"a": jnp.asarray(at, jnp.float64)})[0])
                for at in np.asarray(posterior.draws["a"])[:, 0]
            ]
        off = float(np.max(np.abs(np.asarray(posterior.stats["log_density"])[:, 0] - exact)))
        lost = 1.0 - float(posterior.stats["acceptance_rate"].min())
        rows.append({"what": f"{what}: log density, in nats", "off": off, "right": off < 0.01})
        rows.append({"what": f"{what}: acceptance lost by small steps", "off": lost, "right": lost < 0.01})
    return {"rows": rows}


# -- speed ------------------------------------------------------------------------------------------------------------


def timed(ways: Mapping[str, side_by_side.Way], rounds: int) -> dict[str, float]:
    """Return the seconds per unit of each way: the median of rounds in turns, after one that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            result = way.run()
            if not isinstance(result, side_by_side.Measured):
                result = side_by_side.Measured(time.perf_counter() - began, way.units)
            if number:
                times[name].append(result.seconds / result.units)
    return {name: float(np.median(seconds)) for name, seconds in times.items()}


def leapfrogs(blocks: Mapping[str, Callable[[], None]], sizes: Sizes) -> Report:
    """Return the seconds of a leapfrog of compiled blocks of draws."""
    work = sizes.draws * sizes.leapfrogs
    ways = {name: side_by_side.Way(block, work) for name, block in blocks.items()}
    return {"seconds_of_a_leapfrog": timed(ways, sizes.rounds)}


def _steps(sizes: Sizes) -> argparse.Namespace:
    return argparse.Namespace(draws=sizes.draws, leapfrogs=sizes.leapfrogs)


def against_numpyro(
    model: Callable[..., None], theirs: Callable[..., None], data: Mapping[str, np.ndarray], sizes: Sizes, chains: int
) -> dict[str, Callable[[], None]]:
    """Return blocks of draws of so many chains on one device, of a model in both languages."""
    import hmc_blocks
    import jax.numpy as jnp

    options = _steps(sizes)
    arrays = {name: jnp.asarray(v) for name, v in data.items()}
    step_size = 1e-4
    return {
        f"Phalanx, {chains} chains": hmc_blocks.phalanx_block(
            model, data, options, step_size, num_chains=chains, chain=1, data=1
        ),
        f"NumPyro, {chains} chains": hmc_blocks.numpyro_block(
            theirs, arrays, options, step_size, num_chains=chains, method="vectorized"
        ),
    }


def mnist(sizes: Sizes) -> Report:
    """Regression of MNIST's shape: a leapfrog reads all rows, and is an epoch."""
    import mnist_regression

    block = mnist_regression.phalanx_block(mnist_regression.load(None), _steps(sizes), chain=1, data=1)
    report = leapfrogs({"Phalanx": block}, sizes)
    return {**report, "epochs_a_second": 1.0 / report["seconds_of_a_leapfrog"]["Phalanx"], "aim": 40_000}


def covertype(sizes: Sizes) -> Report:
    """Time a leapfrog on rows of Covertype's shape, of 4 chains and of 16, against NumPyro."""
    import covertype as benchmark
    import numpyro

    import phalanx as phx

    data = dict(zip("xy", benchmark.rows_of(sizes.rows), strict=True))
    model, theirs = (benchmark.model_of(sample) for sample in (phx.sample, numpyro.sample))
    blocks = {}
    for chains in benchmark.CHAINS:
        blocks |= against_numpyro(model, theirs, data, sizes, chains)
    return {**leapfrogs(blocks, sizes), "aim": 0.08e-3}


def movielens(sizes: Sizes) -> Report:
    """Time a leapfrog of two chains on a matrix of MovieLens' size, against NumPyro."""
    import movielens as benchmark

    data = {"watched": benchmark.load(None)[: sizes.users]}
    return leapfrogs(
        against_numpyro(benchmark.phalanx_model, benchmark.numpyro_model, data, sizes, benchmark.CHAINS), sizes
    )


MANY_CHAINS_MODELS = ("eight schools, non-centred", "logistic regression, 25-d")


def many_chains(sizes: Sizes, number: int, system: str) -> Report:
    """Time an effective sample of NUTS with many chains, whole runs with warm-up."""
    import many_chains as benchmark

    options = argparse.Namespace(
        models=list(MANY_CHAINS_MODELS), chains=sizes.chains[number], draws=20, results=Path(sys.argv[0]).parent / "out"
    )
    makers = {"Phalanx": benchmark.phalanx_ways, "NumPyro": benchmark.numpyro_ways, "BlackJAX": blackjax_ways}
    ways = {name: way for name, way in makers[system](options).items() if name.endswith("whole run")}
    return {"chains": sizes.chains[number], "seconds_of_an_effective_sample": timed(ways, 1)}


def blackjax_chain(log_density: Callable[[Any], Any], num_warmup: int, num_draws: int) -> Callable[[Any, Any], Any]:
    """Return the function from a key and a start to the draws of a chain, with a warm-up of its own."""
    import blackjax
    import jax

    adaptation = blackjax.window_adaptation(blackjax.nuts, log_density)
    step = blackjax.nuts.build_kernel()

    def chain(key: Any, start: Any) -> Any:
        warm, sample = jax.random.split(key)
        (state, tuned), _ = adaptation.run(warm, start, num_warmup)

        def draw(state: Any, key: Any) -> Any:
            state, _ = step(key, state, log_density, **tuned)
            return state, state.position

        return jax.lax.scan(draw, state, jax.random.split(sample, num_draws))[1]

    return chain


def blackjax_ways(options: argparse.Namespace) -> dict[str, side_by_side.Way]:
    """Return BlackJAX's NUTS with a window adaptation for each chain, under `jax.vmap`."""
    import jax
    import jax.numpy as jnp
    import many_chains as benchmark
    import numpyro
    from jax.flatten_util import ravel_pytree
    from numpyro.infer.util import initialize_model

    ways = {}
    for name in options.models:
        data = {key: jnp.asarray(v) for key, v in benchmark.data_of(name).items()}
        model = benchmark.model_of(name, numpyro.sample)
        found = initialize_model(jax.random.key(0), model, model_kwargs=data)
        zero, back = ravel_pytree(found.param_info.z)

        def log_density(vector: Any, found: Any = found, back: Any = back) -> Any:
            return -found.potential_fn(back(vector))

        chains = jax.jit(jax.vmap(blackjax_chain(log_density, benchmark.WARMUP, options.draws)))

        def run(chains: Any = chains, size: int = zero.size) -> side_by_side.Measured:
            keys = jax.random.split(jax.random.key(time.time_ns() % 2**31), options.chains)
            starts = jax.random.uniform(keys[0], (options.chains, size), minval=-2.0, maxval=2.0)
            began = time.perf_counter()
            draws = jax.block_until_ready(chains(keys, starts))
            return side_by_side.Measured(time.perf_counter() - began, benchmark.worst_ess({"x": draws}))

        ways[f"BlackJAX, {name}, whole run"] = side_by_side.Way(run)
    return ways


def training(sizes: Sizes) -> Report:
    """Time steps of an autoencoder and of an image transformer, against Flax and optax."""
    import training as benchmark

    seconds = {}
    for name, (by_phalanx, by_hand, batch) in benchmark.MODELS.items():
        x = benchmark.images(argparse.Namespace(data=None), benchmark.BATCHES * batch)
        ours, theirs = benchmark.in_turns(by_phalanx(x), by_hand(x), sizes.rounds, sizes.steps)
        seconds |= {f"Phalanx, {name}": float(np.median(ours)), f"Flax and optax, {name}": float(np.median(theirs))}
    return {"seconds_of_a_step": seconds}


def ensemble(sizes: Sizes) -> Report:
    """Time a step of one of eight networks, trained together and one after the other."""
    import ensemble as benchmark

    data = benchmark.batches(argparse.Namespace(data=None, steps=sizes.steps))
    steps = benchmark.MEMBERS * sizes.steps
    ways = {
        "Phalanx": side_by_side.Way(benchmark.phalanx_ensemble(*data, benchmark.MEMBERS), steps),
        "plain Flax": side_by_side.Way(benchmark.plain_flax(*data, benchmark.MEMBERS), steps),
    }
    return {"seconds_of_a_step_of_a_member": timed(ways, sizes.rounds)}


def lookups(sizes: Sizes) -> Report:
    """Time a leapfrog of effects by group: looked up, and as a product with indicators."""
    import hmc_blocks
    import jax
    import numpyro.distributions as dist

    import phalanx as phx

    random = np.random.default_rng(2)
    count = min(sizes.rows, 100_000)
    data = {
        "g": random.integers(0, sizes.groups, count).astype(np.int32),
        "y": random.normal(size=count).astype(np.float32),
    }

    def model(g: Any, y: Any, of_row: Callable[[Any, Any], Any]) -> None:
        effects = phx.sample("a", dist.Normal(0.0, 1.0).expand([sizes.groups]))
        phx.sample("y", dist.Normal(of_row(effects, g), 1.0), obs=y)

    def by_lookup(g: Any, y: Any) -> None:
        model(g, y, lambda effects, g: effects[g])

    def by_indicators(g: Any, y: Any) -> None:
        model(g, y, lambda effects, g: jax.nn.one_hot(g, sizes.groups) @ effects)

    options = _steps(sizes)
    blocks = {
        program.__name__: hmc_blocks.phalanx_block(program, data, options, 1e-4, chain=1, data=1)
        for program in (by_lookup, by_indicators)
    }
    return leapfrogs(blocks, sizes)


# -- the parts --------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A part: its function of the sizes, and the most minutes that it may take."""

    run: Callable[[Sizes], Report]
    minutes: float


def _many_chains(number: int, system: str) -> Callable[[Sizes], Report]:
    return lambda sizes: many_chains(sizes, number, system)


PARTS = {
    "kernels": Part(kernels, 4.0),
    "placements": Part(placements, 2.0),
    "reducers": Part(reducers, 2.0),
    "mnist": Part(mnist, 2.0),
    "covertype": Part(covertype, 3.0),
    "movielens": Part(movielens, 2.0),
    **{
        f"many chains {number}, {system}": Part(_many_chains(number, system), 2.0 + number)
        for number in range(2)
        for system in ("Phalanx", "NumPyro", "BlackJAX")
    },
    "training": Part(training, 3.0),
    "ensemble": Part(ensemble, 2.0),
    "lookups": Part(lookups, 2.0),
}


def peak_memory() -> float:
    """Return the peak of the device's memory, in GB; of a processor, that of this process."""
    import jax

    statistics = jax.devices()[0].memory_stats() or {}
    return statistics.get("peak_bytes_in_use", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1e9


def run_part(name: str, sizes: Sizes) -> None:
    """Run a part in this process, and print its report as the last line."""
    began = time.perf_counter()
    report = PARTS[name].run(sizes)
    print(json.dumps({**report, "seconds": round(time.perf_counter() - began, 1), "peak_gigabytes": peak_memory()}))


def report_of(name: str, seconds: float, arguments: list[str]) -> Report:
    """Return the report of a part in a process of its own, or why it failed."""
    command = [sys.executable, __file__, "--part", name, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"took longer than {seconds:.0f} s"}
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:] or f"exit status {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def device() -> str:
    """Return the name of the device that JAX takes; this process must not hold it."""
    code = "import jax; print(jax.devices()[0].device_kind, 'x', len(jax.devices()))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="small sizes, for a processor")
    parser.add_argument("--results", type=Path, default=side_by_side.RESULTS, help="folder for the JSON file")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = SMALL if options.small else LARGE
    if options.part:
        run_part(options.part, sizes)
        return
    began = time.monotonic()
    file = options.results / "accelerator.json"
    setting = {"device": device(), "small": options.small, "machine": side_by_side.machine()}
    record = json.loads(file.read_text()) if file.exists() else {}
    if {key: record.get(key) for key in setting} != setting:
        record = {"name": "accelerator", **setting, "parts": {}}
    for name in options.only:
        if "failed" not in record["parts"].get(name, {"failed": "not run"}):
            continue
        left = 60 * MINUTES - (time.monotonic() - began)
        if left < 10:
            sys.exit("the half hour is over; call again to continue")
        report = report_of(name, min(60 * PARTS[name].minutes, left), ["--small"] * options.small)
        record["parts"][name] = report
        options.results.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{name}: {json.dumps(report)}", flush=True)
    wrong = [row["what"] for part in record["parts"].values() for row in part.get("rows", ()) if not row["right"]]
    if wrong:
        sys.exit(f"wrong answers: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
