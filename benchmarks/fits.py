"""Variational fits: Phalanx against NumPyro's SVI, the same model, guide, particles and rate.

A step is timed after compilation, NumPyro's as a scan of `svi.update`; a small model takes so many steps that the start
of the fit does not matter. A whole fit includes compilation, and both end at the same bound. Phalanx runs until it
stops by itself (on MovieLens' shape, for which that may take half an hour, for 200 steps). NumPyro runs `SVI.run` with
the best of a few rates, for the fewest hundreds of steps that come within 0.1 nats of that bound (within a
ten-thousandth of a bound of millions of nats), which favours NumPyro, whose user cannot know them. If NumPyro needs
minutes and is not there, it is timed with that many steps, and the row says so. A second call is the same fit with
another seed. Peak memory is that of a process that does nothing else.

Each model and guide is one part with its own process; the parts run one after the other, peak memory last. `--only`
runs some parts and keeps the results of the others, since each ratio compares times of one process. Results are written
after each part, with the times at which other processes kept cores busy.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import movielens as ratings
import numpy as np
import side_by_side
from side_by_side import Measured, Times, Way

RATE, CLOSE, RELATIVELY, CHUNK = 0.05, 0.1, 1e-4, 100
RATES = 0.05, 0.02, 0.01, 0.005
"""That NumPyro's Adam is tried with."""


def eight_schools() -> dict[str, np.ndarray]:
    return {
        "y": np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32),
        "sigma": np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32),
    }


def schools_model(y, sigma):
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
    numpyro.sample("y", dist.Normal(mu + tau * theta, jnp.asarray(sigma)).to_event(1), obs=y)


def logistic_rows() -> dict[str, np.ndarray]:
    """Return data shaped as Covertype's, with a thirtieth of its rows."""
    random = np.random.default_rng(0)
    x = random.normal(size=(20_000, 55)).astype(np.float32)
    chance = 1.0 / (1.0 + np.exp(-x @ random.normal(size=55) / 3.0))
    return {"x": x, "y": (random.random(20_000) < chance).astype(np.float32)}


def logistic_model(x, y):
    import numpyro
    import numpyro.distributions as dist

    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([55]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ w).to_event(1), obs=y)


@dataclass(frozen=True)
class Work:
    """Work of one part: model, data, guides, number of timed steps, and most steps of NumPyro in a whole fit.

    Attributes:
        whole: options of a whole fit by Phalanx, with its stopping rule.
        judged: number of draws for estimates of the bound.
        rates: learning rates for NumPyro.
    """

    model: Callable[..., None]
    data: Callable[[], dict[str, np.ndarray]]
    guides: tuple[str, ...]
    particles: int
    steps: int
    most: int
    theirs: Callable[..., None] | None = None
    whole: Mapping[str, Any] = field(default_factory=dict)
    judged: int = 2000
    rates: tuple[float, ...] = RATES


WORK = {
    "eight schools": Work(schools_model, eight_schools, ("mean field", "full rank"), 8, 20_000, 10_000),
    "covertype's shape": Work(logistic_model, logistic_rows, ("mean field", "full rank"), 8, 2000, 5000),
    "MovieLens' shape": Work(
        ratings.phalanx_model, lambda: {"watched": ratings.load(None)}, ("mean field",), 1, 3, 2000,
        ratings.numpyro_model, {"num_steps": 200, "until": False}, 16, (0.05, 0.1),
    ),
}  # fmt: skip

CASES = {f"{name}, {guide}": (name, guide) for name, work in WORK.items() for guide in work.guides}
MEMORY = "MovieLens' shape, mean field: peak memory"
PARTS = [*CASES, MEMORY]


def phalanx_fit(work: Work, guide: str, data: Any, **options: Any) -> Any:
    import phalanx as phx

    made = {"mean field": phx.guides.mean_field, "full rank": phx.guides.full_rank}[guide]()
    return phx.fit(work.model, made, data, num_particles=work.particles, progress=False, **options)


def numpyro_svi(work: Work, guide: str, rate: float = RATE) -> Any:
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO, autoguide

    model = work.theirs or work.model
    made = {"mean field": autoguide.AutoNormal, "full rank": autoguide.AutoMultivariateNormal}[guide](model)
    return SVI(model, made, numpyro.optim.Adam(rate), Trace_ELBO(num_particles=work.particles))


class Theirs:
    """NumPyro's fit: steps compiled once, and the bound after any number of them."""

    def __init__(self, work: Work, guide: str, data: Any, rate: float = RATE):
        import jax

        self.svi, self.data = numpyro_svi(work, guide, rate), {name: jax.numpy.asarray(v) for name, v in data.items()}

        def scan(state: Any, count: int, data: Any) -> Any:
            return jax.lax.scan(lambda state, _: self.svi.update(state, **data), state, None, length=count)

        self._scan = jax.jit(scan, static_argnums=1)
        self.begun = self.svi.init(jax.random.key(0), **self.data)

    def steps(self, state: Any, count: int) -> Any:
        import jax

        return jax.block_until_ready(self._scan(state, count, self.data)[0])

    def needed(self, bound: float, most: int, judged: int) -> tuple[int, bool]:
        """Return the hundreds of steps after which the bound is as high, and True if it ever is."""
        import jax
        from numpyro.infer import Trace_ELBO

        elbo = Trace_ELBO(num_particles=judged)

        @jax.jit
        def loss(state: Any, data: Any) -> Any:
            return elbo.loss(jax.random.key(1), self.svi.get_params(state), self.svi.model, self.svi.guide, **data)

        state = self.begun
        for count in range(CHUNK, most + 1, CHUNK):
            state = self.steps(state, CHUNK)
            if -float(loss(state, self.data)) >= bound - max(CLOSE, RELATIVELY * abs(bound)):
                return count, True
        return most, False


def at_best(work: Work, guide: str, data: Any, bound: float) -> tuple[float, int, bool]:
    """Return the rate at which NumPyro reaches a bound in the fewest steps, their number, and True if it is reached."""
    found = work.rates[0], work.most, False
    for rate in work.rates:
        most = found[1] - CHUNK * found[2]
        count, is_there = Theirs(work, guide, data, rate).needed(bound, most, work.judged)
        found = (rate, count, True) if is_there else found
    return found


def step_ways(work: Work, guide: str, data: Any) -> dict[str, Callable[[], Measured]]:
    count = work.steps

    def ours() -> Measured:
        fit = phalanx_fit(work, guide, data, num_steps=count, until=False, optimizer=RATE)
        return Measured(fit.timing.sampling, count)  # what is compiled for it is apart

    theirs = Theirs(work, guide, data)

    def peer() -> Measured:
        theirs.steps(theirs.begun, count)  # of no account: whole fits have cleared the caches
        began = time.perf_counter()
        theirs.steps(theirs.begun, count)
        return Measured(time.perf_counter() - began, count)

    return {"Phalanx": ours, "NumPyro": peer}


def whole_ways(work: Work, guide: str, data: Any) -> dict[str, Callable[[], Measured]]:
    import jax

    from phalanx.learning import compiled

    bound, seed = phalanx_fit(work, guide, data, **work.whole).evidence(num_draws=work.judged).elbo, [0]
    rate, needed, is_there = at_best(work, guide, data, bound)
    on_device = {name: jax.numpy.asarray(values) for name, values in data.items()}

    def anew(run: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> Callable[[], Measured]:
        def timed() -> Measured:
            before()
            seed[0] += 1
            began = time.perf_counter()
            run()
            return Measured(time.perf_counter() - began, 1)

        return timed

    def ours() -> Any:
        return phalanx_fit(work, guide, data, seed=seed[0], **work.whole)

    def forget() -> None:
        compiled.COMPILED.clear()
        jax.clear_caches()

    def peer() -> Any:
        svi = numpyro_svi(work, guide, rate)
        return jax.block_until_ready(svi.run(jax.random.key(seed[0]), needed, progress_bar=False, **on_device).params)

    how_far = f"{needed} steps at {rate}" + ("" if is_there else ", not there")
    found: dict[str, Callable[[], Measured]] = {}
    for name, run in {"Phalanx, {}": ours, f"NumPyro, {{}}, {how_far}": peer}.items():
        # the other's first call has made JAX forget what a second one has at hand: it follows a call of its own
        found |= {name.format("first"): anew(run, forget), name.format("again"): anew(run, run)}
    return found


def ways(name: str, guide: str) -> dict[str, Way]:
    import os

    os.environ["PHALANX_CACHE"] = "off"  # a first call compiles
    work = WORK[name]
    data = work.data()
    found = {f"step: {what}": run for what, run in step_ways(work, guide, data).items()}
    found |= {f"fit: {what}": run for what, run in whole_ways(work, guide, data).items()}
    return {f"{name}, {guide}, {what}": Way(run) for what, run in found.items()}


def peak(way: str) -> float:
    """Return the peak memory, in GB, of processes that make a few steps on MovieLens."""
    command = [sys.executable, __file__, "--alone", way]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def alone(way: str) -> None:
    """Make a few steps, and print their peak memory."""
    work = WORK["MovieLens' shape"]
    if way == "Phalanx":
        phalanx_fit(work, "mean field", work.data(), num_steps=work.steps, until=False)
    else:
        theirs = Theirs(work, "mean field", work.data())
        theirs.steps(theirs.begun, work.steps)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


ROWS = (("a step", "step", "", 1.0), ("a whole fit", "fit", ", first", 0.5), ("a second call", "fit", ", again", 0.1))
"""What is compared, which ways do it, and the most that the ratio may be."""


def rows(name: str, guide: str, times: Times) -> list[dict[str, Any]]:
    found = []
    for what, kind, which, at_most in ROWS:
        begins = [f"{name}, {guide}, {kind}: {system}{which}" for system in ("Phalanx", "NumPyro")]
        if both := [way for begin in begins for way in times if way.startswith(begin)]:
            ours, theirs = both
            found.append(side_by_side.compare(f"{name}, {guide}: {what}", ours, theirs, times, at_most=at_most))
    return found


def memory() -> dict[str, Any]:
    ours, theirs = peak("Phalanx"), peak("NumPyro")
    return {
        "what": MEMORY, "ours": "Phalanx", "ours_time": round(ours, 3),
        "theirs": "NumPyro", "theirs_time": round(theirs, 3), "unit": "GB", "ratio": round(ours / theirs, 3),
        "middle_half": [round(ours / theirs, 3)] * 2, "at_most": 1.0, "met": ours <= theirs,
    }  # fmt: skip


def settings() -> dict[str, Any]:
    return {
        "rate": RATE,
        "rates": {name: work.rates for name, work in WORK.items()},
        "particles": {name: work.particles for name, work in WORK.items()},
    }


def part_of(row: dict[str, Any]) -> str:
    """Return the part to which a row belongs."""
    return MEMORY if row["what"] == MEMORY else row["what"].rsplit(": ", 1)[0]


def known(options: argparse.Namespace) -> dict[str, Any]:
    """Return the saved results of earlier runs, if only some parts are to run."""
    file = options.results / "fits.json"
    if options.only is None or not file.exists():
        return {"rows": [], "milliseconds": {}, "parts": {}}
    return {"milliseconds": {}, "parts": {}} | json.loads(file.read_text())


def run(options: argparse.Namespace) -> None:
    before, whole = known(options), side_by_side.Watch()
    found = before["rows"]
    times = {way: [t / 1e3 for t in taken] for way, taken in before["milliseconds"].items()}
    parts, new = before["parts"], []
    for part in options.only or PARTS:
        watch = side_by_side.Watch()
        if part == MEMORY:
            made = [memory()]
        else:
            measured = side_by_side.take_turns(__file__, [*sys.argv[1:], "--case", part], (1,), options.rounds)
            times = {way: taken for way, taken in times.items() if not way.startswith(f"{part}, ")} | measured
            made = rows(*CASES[part], measured)
        found = sorted(
            [*(row for row in found if part_of(row) != part), *made], key=lambda row: PARTS.index(part_of(row))
        )
        parts[part] = {"rounds": options.rounds, **watch.look()}
        side_by_side.save("fits", found, settings(), whole, options.results, times, parts=parts)
        new += made
    for row in new:
        print(json.dumps(row))


if __name__ == "__main__":
    parser = side_by_side.arguments(__doc__ or "", rounds=3)
    parser.add_argument("--only", nargs="+", choices=PARTS, help="the parts to run")
    parser.add_argument("--alone", choices=["Phalanx", "NumPyro"], help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=list(CASES), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.alone:
        alone(chosen.alone)
    elif chosen.serve_on:
        side_by_side.serve(ways(*CASES[chosen.case]))
    else:
        run(chosen)
