"""HMC on the MNIST regression: Phalanx against the same mathematics written by hand, on one device and on two.

By hand means what a good JAX programmer would write for this one model: a jitted `fori_loop` over draws, one over
leapfrogs inside, and on two devices a `shard_map` whose leapfrog ends in a `psum`. It comes with the gradient from
`jax.grad` and with the gradient worked out on paper; the faster of the two is quoted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import mnist_regression as regression
import side_by_side
from side_by_side import Times, Way


def by_hand(data, options: argparse.Namespace, devices: int, likelihood: Callable) -> Callable[[], None]:
    """Return HMC on the posterior; `likelihood(x, y)` returns a function from (w, b) to log likelihood and gradient."""
    import jax
    import jax.numpy as jnp
    from jax import P, lax, random

    import phalanx as phx

    mesh = phx.make_mesh(chain=1, data=devices)
    data = phx.shard(data, mesh)
    shapes = (regression.PIXELS, regression.CLASSES), (regression.CLASSES,)
    step_size = regression.STEP_SIZE

    def axpy(a, x, y):
        return jax.tree.map(lambda x, y: a * x + y, x, y)

    def half_square(x):
        return 0.5 * sum(jnp.sum(leaf * leaf) for leaf in x)

    def block(x, y, key, state):
        local = likelihood(x, y)

        def value_and_grad(position):
            value, gradient = local(position) if devices == 1 else lax.psum(local(position), "data")
            return value - half_square(position), axpy(-1.0, position, gradient)

        def leapfrog(position, momentum, gradient):
            momentum = axpy(0.5 * step_size, gradient, momentum)
            position = axpy(step_size, momentum, position)
            value, gradient = value_and_grad(position)
            return value, (position, axpy(0.5 * step_size, gradient, momentum), gradient)

        def draw(i, carry):
            state, draws = carry
            *keys, key_accept = random.split(random.fold_in(key, i), 3)
            momentum = tuple(random.normal(k, shape) for k, shape in zip(keys, shapes, strict=True))
            position, _, gradient = state
            # the log density is needed at the end alone
            phase = lax.fori_loop(
                0, options.leapfrogs - 1, lambda _, phase: leapfrog(*phase)[1], (position, momentum, gradient)
            )
            value, (position, end, gradient) = leapfrog(*phase)
            log_ratio = value - half_square(end) - state[1] + half_square(momentum)
            accepted = random.uniform(key_accept) < jnp.exp(log_ratio)
            state = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), (position, value, gradient), state)
            return state, jax.tree.map(lambda d, new: d.at[i].set(new), draws, state[0])

        draws = tuple(jnp.zeros((options.draws, *shape)) for shape in shapes)
        return lax.fori_loop(0, options.draws, draw, (state, draws))

    specs = P("data"), P("data"), P(), P()
    # as in a run of Phalanx: no collective is differentiated, so nothing needs to be checked
    run_block = jax.jit(jax.shard_map(block, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False))
    zeros = tuple(jnp.zeros(shape) for shape in shapes)
    state = jax.device_put((zeros, -jnp.inf * jnp.ones(()), zeros), jax.NamedSharding(mesh, P()))

    def run() -> None:
        nonlocal state
        state, _ = jax.block_until_ready(run_block(data["x"], data["y"], random.key(1), state))

    return run


def by_autodiff(x, y):
    """Return the log likelihood of (w, b) and its gradient, by `jax.grad`."""
    import jax
    import jax.numpy as jnp

    def log_likelihood(position):
        w, b = position
        log_probabilities = jax.nn.log_softmax(x @ w + b)
        return jnp.sum(jnp.take_along_axis(log_probabilities, y[:, None], axis=1))

    return jax.value_and_grad(log_likelihood)


def on_paper(x, y):
    """Return the log likelihood of (w, b) and its gradient, derived on paper."""
    import jax
    import jax.numpy as jnp

    labels = jax.nn.one_hot(y, regression.CLASSES)

    def value_and_grad(position):
        w, b = position
        log_probabilities = jax.nn.log_softmax(x @ w + b)
        residual = labels - jnp.exp(log_probabilities)
        return jnp.sum(labels * log_probabilities), (x.T @ residual, jnp.sum(residual, axis=0))

    return value_and_grad


def ways(options: argparse.Namespace) -> dict[str, Way]:
    devices, data = options.serve_on, regression.load(options.data)
    leapfrogs, wide = options.draws * options.leapfrogs, regression.widened(data)
    return {
        f"Phalanx, devices: {devices}": Way(regression.phalanx_block(data, options, chain=1, data=devices), leapfrogs),
        f"by hand with jax.grad, devices: {devices}": Way(by_hand(wide, options, devices, by_autodiff), leapfrogs),
        f"by hand on paper, devices: {devices}": Way(by_hand(wide, options, devices, on_paper), leapfrogs),
    }


def rows(times: Times) -> list[dict]:
    return [
        side_by_side.compare(
            f"a leapfrog, devices: {devices}",
            f"Phalanx, devices: {devices}",
            min(
                (side_by_side.fastest(times, f"{way}, devices: {devices}") for way in ("jax.grad", "on paper")),
                key=lambda name: sorted(times[name])[len(times[name]) // 2],
            ),
            times,
            at_most=1.10,
        )
        for devices in (1, 2)
    ]


if __name__ == "__main__":
    parser = regression.add_options(side_by_side.arguments(__doc__, rounds=9))
    side_by_side.run(__file__, parser, (1, 2), ways, rows, regression.settings)
