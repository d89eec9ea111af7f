"""Value and gradient of many lanes, density by density: with the lanes as the last axis, and with `jax.vmap`.

A turn is a loop of small steps along the gradient, on one device. The last rows time tracing and compiling.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side
from side_by_side import Way

AT_MOST = 1.05
"""Of the time of `vmap`, from 64 lanes on: lanes last is then used for every density, so it must not be slower for any.
With `--lanes 4` one sees why a few lanes are left to `vmap`."""

STEPS = {"logistic regression": 10, "softmax regression": 10, "rows in groups": 50}
"""Of a turn, where not as many as for a small density."""


def densities(random: np.random.Generator) -> dict[str, tuple[Callable[..., None], dict[str, np.ndarray]]]:
    """Return models with their data."""
    import jax.numpy as jnp
    import numpyro.distributions as dist
    from jax import lax
    from jax.scipy.special import logsumexp

    import phalanx as phx
    from phalanx.demos.mixture import LOC, SCALE, WEIGHT, model_as_written
    from phalanx.demos.mixture import model as written_out

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    def log_sum_exp() -> None:
        x = phx.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
        terms = np.log(WEIGHT / SCALE) - 0.5 * ((x[..., None] - LOC) / SCALE) ** 2
        phx.factor("mixture", logsumexp(terms, axis=-1))

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
    }


def follow(target: Any, lanes: int, every: Callable[..., Any], steps: int) -> Callable[[Any], Any]:
    """Make `steps` small steps along the gradient; `every` turns a function of one lane into one of all lanes."""
    import jax

    from phalanx.mesh.position import Vector

    def on_device(position: Any, arrays: Any) -> Any:
        density, layout = target.on_device(arrays, lanes), target.sites.layout

        def one(*parts: Any) -> Any:
            value, gradient = density.value_and_grad(Vector(parts, layout).by_variable())
            return value.value, layout.vector(gradient).parts

        def step(_: Any, carry: Any) -> Any:
            value, gradient = every(one)(*carry[0])
            return tuple(x + 1e-6 * g for x, g in zip(carry[0], gradient, strict=True)), value

        return jax.lax.fori_loop(0, steps, step, (position, jax.numpy.zeros(lanes)))

    specs = jax.P(), target.array_specs()
    run = jax.jit(jax.shard_map(on_device, mesh=target.mesh, in_specs=specs, out_specs=jax.P(), check_vma=False))
    arrays = target.place_arrays()
    return lambda position: jax.block_until_ready(run(position, arrays))


def ways(options: argparse.Namespace) -> dict[str, Way]:
    import jax

    import phalanx as phx
    from phalanx.density.target import Target
    from phalanx.jaxprs.lanes_last import lanes_last

    random, ways = np.random.default_rng(0), {}
    both = {"lanes last": lanes_last, "vmap": lambda f: jax.vmap(f, in_axes=-1, out_axes=-1)}
    for (name, (model, data)), lanes in itertools.product(densities(random).items(), options.lanes):
        target = Target(model, data, mesh=phx.make_mesh(chain=1, devices=jax.devices()[:1]))
        size = sum(int(np.prod(v.unconstrained_shape)) for v in target.sites.latents)
        position = (0.1 * random.normal(size=(size, lanes)).astype(np.float32),)
        steps = STEPS.get(name, options.steps)
        for kind, every in both.items():
            run = follow(target, lanes, every, steps)
            ways[f"{name}, {lanes:,} lanes, {kind}"] = Way(partial(run, position), steps)
            if name == "eight schools":  # a function is traced and compiled anew whenever it is made anew
                anew = partial(follow, target, lanes, every, 1)
                ways[f"compiling {name}, {lanes:,} lanes, {kind}"] = Way(lambda a=anew, p=position: a()(p))
    return ways


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=7)
    parser.add_argument("--steps", type=int, default=500, help="along the gradient, in a turn of a small density")
    parser.add_argument("--lanes", type=int, nargs="+", default=[64, 256])

    def rows(times: side_by_side.Times) -> list[dict[str, Any]]:
        names = [name.removesuffix(", lanes last") for name in times if name.endswith(", lanes last")]
        thousandth = {name: [1e3 * t for t in taken] for name, taken in times.items()}
        return [
            side_by_side.compare(name, f"{name}, lanes last", f"{name}, vmap", thousandth, at_most=AT_MOST, unit="us")
            for name in names
        ]

    def settings(options: argparse.Namespace) -> dict[str, Any]:
        return {name: getattr(options, name) for name in ("steps", "lanes", "rounds")}

    side_by_side.run(str(Path(__file__)), parser, [1], ways, rows, settings)


if __name__ == "__main__":
    main()
