"""Value and gradient of many lanes, density by density: with the lanes as the last axis, and with `jax.vmap`.

A turn is a loop of small steps along the gradient, on one device. The last rows time tracing and compiling.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side
from side_by_side import Measured, Way

LARGE = {"MNIST, blocked": (2, 4), "covertype": (4, 16), "movielens, blocked": (2,)}
SMALL = {
    "mixture, MixtureSameFamily": (1_000,),
    "mixture, log-sum-exp": (1_000,),
    "mixture, written out": (1_000,),
    "eight schools": (4, 256),
    "logistic regression": (4, 256),
    "softmax regression": (4, 256),
    "rows in groups": (4, 256),
    "random walk through time": (4, 256),
}
AT_MOST = 1.05
"""Lanes last is used for all densities, so it must not be slower for any."""


def densities(random: np.random.Generator) -> dict[str, tuple[Callable[..., None], dict[str, np.ndarray]]]:
    """Models with their data."""
    import jax.numpy as jnp
    import mnist_regression
    import movielens
    import numpyro.distributions as dist
    from jax import lax

    import phalanx as phx
    from phalanx.demos.mixture import model as written_out
    from phalanx.demos.mixture import model_as_written
    from phalanx.demos.mixture_density import log_density_as_written

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    def log_sum_exp() -> None:
        x = phx.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
        phx.factor("mixture", log_density_as_written(x))

    def schools(y, sigma) -> None:
        mu, tau = phx.sample("mu", dist.Normal(0.0, 5.0)), phx.sample("tau", dist.HalfCauchy(5.0))
        z = phx.sample("z", dist.Normal(0.0, 1.0).expand([8]))
        phx.sample("y", dist.Normal(mu + tau * z, sigma), obs=y)

    def logistic(x, y) -> None:
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]))
        phx.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def softmax(x, y) -> None:
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1], 10]))
        phx.sample("y", dist.Categorical(logits=x @ w), obs=y)

    def groups(group, y) -> None:
        scale = phx.sample("scale", dist.HalfNormal(1.0))
        level = phx.sample("level", dist.Normal(0.0, scale).expand([100]))
        phx.sample("y", dist.Normal(level[group], 1.0), obs=y)

    def walk(y) -> None:
        step = phx.sample("step", dist.Normal(0.0, 1.0).expand([len(y)]))
        decay = phx.sample("decay", dist.Uniform(0.0, 1.0))
        path = lax.scan(lambda x, s: (decay * x + s, decay * x + s), jnp.zeros(()), step)[1]
        phx.sample("y", dist.Normal(path, 1.0), obs=y)

    def labels(count: int, classes: int) -> np.ndarray:
        return random.integers(0, classes, count).astype(np.int32)

    return {
        "mixture, MixtureSameFamily": (model_as_written, {}),
        "mixture, log-sum-exp": (log_sum_exp, {}),
        "mixture, written out": (written_out, {}),
        "eight schools": (schools, {"y": 10 * normal(8), "sigma": 10 + normal(8)}),
        "logistic regression": (logistic, {"x": normal(5_000, 55), "y": labels(5_000, 2)}),
        "softmax regression": (softmax, {"x": normal(500, 20), "y": labels(500, 10)}),
        "rows in groups": (groups, {"group": labels(2_000, 100), "y": normal(2_000)}),
        "random walk through time": (walk, {"y": normal(100)}),
        "covertype": (logistic, {"x": normal(581_012, 55), "y": labels(581_012, 2)}),
        "MNIST, blocked": (mnist_regression.model, mnist_regression.load(None)),
        "movielens, blocked": (movielens.phalanx_model, {"watched": movielens.load(None)}),
    }


def follow(target: Any, lanes: int, every: Callable[..., Any], steps: int) -> Callable[[Any], Any]:
    """`steps` small steps along the gradient, `every` of a function of one lane being that of all."""
    import jax

    from phalanx.kernels.lanes import Lanes

    def on_device(position: Any, arrays: Any) -> Any:
        of = Lanes(target.on_device(arrays, lanes), lanes)

        def one(*parts: Any) -> Any:
            value, gradient = of.density.value_and_grad(of.unflatten(parts))
            return value, of.flatten(gradient)

        def step(_: Any, carry: Any) -> Any:
            value, gradient = every(one)(*carry[0])
            return tuple(x + 1e-6 * g for x, g in zip(carry[0], gradient, strict=True)), value

        return jax.lax.fori_loop(0, steps, step, (position, jax.numpy.zeros(lanes)))

    specs = jax.P(), target.array_specs()
    run = jax.jit(jax.shard_map(on_device, mesh=target.mesh, in_specs=specs, out_specs=jax.P(), check_vma=False))
    arrays = target.place_arrays()
    return lambda position: (
        run.lower(position, arrays).compile()(position, arrays) if steps == 1 else run(position, arrays)
    )


def ways(options: argparse.Namespace) -> dict[str, Way]:
    import jax

    import phalanx as phx
    from phalanx.kernels.lanes_last import lanes_last
    from phalanx.programs.target import Target

    random, ways = np.random.default_rng(0), {}
    found = densities(random)
    for name, counts in ((SMALL | LARGE) if options.large else SMALL).items():
        if options.only and options.only not in name:
            continue
        model, data = found[name]
        target = Target(model, data, mesh=phx.make_mesh(chain=1, devices=jax.devices()[:1]))
        size = sum(int(np.prod(v.unconstrained_shape)) for v in target.shares.latents)
        for lanes in counts:
            steps = 3 if name in LARGE else options.steps
            position = (0.1 * random.normal(size=(size, lanes)).astype(np.float32),)
            both = {"lanes last": lanes_last, "vmap": lambda f: jax.vmap(f, in_axes=-1, out_axes=-1)}
            for kind, every in both.items():
                run = follow(target, lanes, every, steps)

                def go(run=run, position=position):
                    return jax.block_until_ready(run(position))

                ways[f"{name}, {lanes:,} lanes, {kind}"] = Way(go, steps)
                if (name, lanes) == ("eight schools", 256):
                    once = follow(target, lanes, every, 1)

                    def compiling(once=once, position=position):
                        jax.clear_caches()
                        began = time.perf_counter()
                        jax.block_until_ready(once(position))
                        return Measured(time.perf_counter() - began, 1)

                    ways[f"compiling {name}, {lanes:,} lanes, {kind}"] = Way(compiling)
    return ways


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=7)
    parser.add_argument("--steps", type=int, default=200, help="along the gradient, in a turn of a small density")
    parser.add_argument("--large", action="store_true", help="also MNIST, Covertype and MovieLens at full size")
    parser.add_argument("--only", help="densities with this in their names")

    def rows(times: side_by_side.Times) -> list[dict[str, Any]]:
        names = [name.removesuffix(", lanes last") for name in times if name.endswith(", lanes last")]
        thousandth = {name: [1e3 * t for t in taken] for name, taken in times.items()}
        return [
            side_by_side.compare(name, f"{name}, lanes last", f"{name}, vmap", thousandth, at_most=AT_MOST, unit="us")
            for name in names
        ]

    def settings(options: argparse.Namespace) -> dict[str, Any]:
        return {name: getattr(options, name) for name in ("steps", "large", "rounds")}

    side_by_side.run(str(Path(__file__)), parser, [1], ways, rows, settings)


if __name__ == "__main__":
    main()
