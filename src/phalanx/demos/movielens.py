"""Matrix factorisation of users and films: a user's variables live on the device that holds the user's row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx import reducers
from phalanx.datasets import Watched, generate_movielens, movielens
from phalanx.demos.models.factorisation import MATHEMATICS, Entries, hide, model
from phalanx.demos.options import DemoOptions, Sizes, choose, mesh_with
from phalanx.demos.pictures.movielens import by_genre, recommendations, traces
from phalanx.demos.scoring.held_out import HiddenEntryScores, score_held_out
from phalanx.demos.show import finish, introduce
from phalanx.extras import require
from phalanx.inputs.placement import shard
from phalanx.kernels.hmc import hmc
from phalanx.mesh.output import STDOUT
from phalanx.mesh.take_rows import take_rows
from phalanx.posterior.posterior import Posterior
from phalanx.reducers.reducer import Reduce
from phalanx.report import reliability_figure
from phalanx.run.mcmc import mcmc
from phalanx.variational.maximum import maximize

if TYPE_CHECKING:
    from jaxtyping import Float

DEFAULT = Sizes(chains=2, warmup=1000, draws=500)
HIDDEN = 0.05
DIMENSIONS, DIMENSIONS_GENERATED = 20, 3


def main(options: DemoOptions) -> Posterior:
    """Run the demo with 100 leapfrogs a draw; the first half of warm-up tunes the step size from 1e-2."""
    require("sklearn.metrics")  # needed after the run: fail before it
    sizes, data = choose(options, DEFAULT), load(options)
    dimensions = DIMENSIONS_GENERATED if data.name == "movielens-generated" else DIMENSIONS
    entries, two = hide(data.matrix, HIDDEN, options.seed), ends_of(data.matrix)
    users, films = data.matrix.shape
    hidden = entries.columns.shape[1]
    mathematics = MATHEMATICS.format(users=users, films=films, dimensions=dimensions, hidden=hidden)
    introduce(f"Who watches what: {data.name}", mathematics, f"{data.source}; {data.licence}")
    mesh = mesh_with(jax.device_count() if options.data_shards is None else options.data_shards)
    arguments = {**shard(entries._asdict(), mesh), "dimensions": dimensions}
    posterior = mcmc(
        model,
        arguments,
        kernel=hmc(100, initial_step_size=1e-2, tuned_steps=sizes.warmup // 2, step_size_jitter=0.0, metric="identity"),
        num_chains=sizes.chains,
        num_warmup=sizes.warmup,
        num_samples=sizes.draws,
        seed=options.seed,
        mesh=mesh,
        keep=["film_biases"],
        reducers={
            "held_out": reducers.reduce(lambda values: values["held_out"], reducers.moments()),
            "best": best_of(two, entries),
        },
        matmul_precision=options.precision,
    )
    best = maximize(model, arguments, mesh=mesh, seed=options.seed)
    probabilities = {
        "posterior": posterior.reduced["held_out"].mean,
        "MAP": best.values["held_out"],
        "popularity": popularity(entries),
    }
    scores = score_held_out(np.take_along_axis(data.matrix, entries.columns, axis=1), probabilities)
    shares = posterior.reduced["best"].counts / posterior.reduced["best"].counts.sum(1, keepdims=True)
    numbers, words = headline(data, scores, shares, two)
    figures = {
        "log_density_and_acceptance": traces(posterior.stats),
        "recommendations": recommendations(shares, two, data),
        "reliability": reliability_figure(
            scores["posterior"].calibration, "share watched", "predicted probability", "hidden entries"
        ),
    }
    if data.genres is not None:
        figures["genres"] = by_genre(shares, two, data)
    finish(posterior, numbers, words, figures, options.out)
    return posterior


def load(options: DemoOptions) -> Watched:
    """Return the real ratings, or a smaller simulated matrix if they are missing and no folder is named."""
    try:
        return movielens(options.data)
    except FileNotFoundError as error:
        if options.data is not None:
            raise
        STDOUT.say(f"The matrix is generated, because the real one is missing. {error}")
        return generate_movielens()


def ends_of(watched: np.ndarray) -> dict[str, int]:
    """Return the users with the most and the fewest films."""
    counts = watched.sum(1, dtype=np.int64)
    return {"most": int(counts.argmax()), "fewest": int(counts.argmin())}


def best_of(users: Mapping[str, int], entries: Entries) -> Reduce:
    """Return a reducer that counts how often each film ranks first among a user's unwatched films, `(users, films)`."""
    numbers = list(users.values())
    known = entries.watched[numbers].astype(bool) & entries.shown[numbers]

    def best(values: Mapping[str, Array]) -> Array:
        embeddings, biases = (take_rows(values[name], numbers) for name in ("user_embeddings", "user_biases"))
        logits = embeddings @ values["film_embeddings"].T + biases[:, None] + values["film_biases"][None]
        return jnp.argmax(jnp.where(known, -jnp.inf, logits), axis=1).astype(jnp.float32)

    return reducers.reduce(best, reducers.histogram(np.arange(entries.watched.shape[1] + 1) - 0.5))


def popularity(entries: Entries) -> np.ndarray:
    """Return probabilities of the hidden entries from the fraction of shown users who watched the film."""
    shown = entries.shown.sum(0, dtype=np.int64)
    rate = ((entries.watched * entries.shown).sum(0, dtype=np.int64) + 1) / (shown + 2)
    return rate[entries.columns]


def headline(
    data: Watched, scores: Mapping[str, HiddenEntryScores], shares: np.ndarray, two: Mapping[str, int]
) -> tuple[dict[str, Any], str]:
    """Return the main results, by name and in words."""
    numbers: dict[str, Any] = {"data": data.name, "source": data.source}
    lines = []
    for name, score in scores.items():
        numbers |= {f"auc_{name.lower()}": score.auc, f"log_loss_{name.lower()}": score.log_loss}
        lines.append(f"hidden entries, {name}: AUC {score.auc:.4f}, log loss {score.log_loss:.4f}")
    for (which, user), share in zip(two.items(), shares, strict=True):
        films, watched = int((share > 0).sum()), int(data.matrix[user].sum())
        numbers |= {f"films_recommended_{which}": films, f"effective_films_{which}": effective(share)}
        lines.append(
            f"user {user}, who watched {watched:,} films: {films} different films rank first in some draw, "
            f"as diverse as {effective(share):.1f} equally frequent ones"
        )
    return numbers, "\n".join(lines)


def effective(share: Float[np.ndarray, "film"]) -> float:
    """Return the effective number of films: the exponential of the entropy of their shares."""
    positive = share[share > 0]
    return float(np.exp(-np.sum(positive * np.log(positive))))
