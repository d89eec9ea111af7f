"""Matrix factorisation of users and films: a user's variables live on the device that holds the user's row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax

import phalanx as phx
from phalanx.demos.options import DemoOptions, finish, introduce
from phalanx.diagnostics.calibration import calibrate
from phalanx.extras import require
from phalanx.mesh.output import STDOUT
from phalanx.reducers.reducer import Reduce
from phalanx.report import reliability_figure
from phalanx.report.plots import style

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
    from matplotlib.figure import Figure

MATHEMATICS = """
    U ~ Normal(0, 1)  [{users:,}, {dimensions}]      u ~ Normal(0, 1)  [{users:,}]
    V ~ Normal(0, 1)  [{films:,}, {dimensions}]      v ~ Normal(0, 1)  [{films:,}]
    W ~ Bernoulli(sigmoid(U V' + u + v'))  [{users:,}, {films:,}], {hidden} of each row hidden
"""
HIDDEN = 0.05
DIMENSIONS, DIMENSIONS_GENERATED = 20, 3
ROWS = 64
"""Users per batch of held-out probabilities."""

SHOWN = 12
"""Films or genres in a picture."""

COLORS = {"most": style.ACCENT, "fewest": style.SECOND}


class Entries(NamedTuple):
    """Matrix with some hidden entries in each row.

    Attributes:
        watched: ones and zeros, `(users, films)`, int8.
        is_shown: true for entries that are not hidden, `(users, films)`.
        columns: columns of the hidden entries, `(users, hidden)`.
    """

    watched: Int[np.ndarray, "user film"]
    is_shown: Bool[np.ndarray, "user film"]
    columns: Int[np.ndarray, "user hidden"]


def hide(watched: Int[np.ndarray, "user film"], fraction: float, seed: int) -> Entries:
    """Hide a fraction of the entries, as many in each row, chosen uniformly."""
    users, films = watched.shape
    num_hidden = max(1, round(fraction * films))
    random = np.random.RandomState(seed)
    columns = np.argpartition(random.uniform(size=(users, films)).astype(np.float32), num_hidden, axis=1)[
        :, :num_hidden
    ]
    is_shown = np.ones(watched.shape, bool)
    np.put_along_axis(is_shown, columns, False, axis=1)
    return Entries(watched, is_shown, columns.astype(np.int32))


def model(watched: Array, is_shown: Array, columns: Array, dimensions: int) -> None:
    """Model watched films by the inner products of users and films; a user's variables live with the user's row."""
    users, films = watched.shape
    film_embeddings = phx.sample("film_embeddings", dist.Normal(0.0, 1.0).expand([films, dimensions]))
    film_biases = phx.sample("film_biases", dist.Normal(0.0, 1.0).expand([films]))
    user_embeddings = phx.sample("user_embeddings", dist.Normal(0.0, 1.0).expand([users, dimensions]))
    user_biases = phx.sample("user_biases", dist.Normal(0.0, 1.0).expand([users]))

    def rows(embeddings: Array, biases: Array, is_shown: Array) -> dist.Distribution:
        logits = embeddings @ film_embeddings.T + biases[:, None] + film_biases[None]
        return dist.Bernoulli(logits=logits).mask(is_shown).to_event(1)

    phx.sample("watched", phx.blocked(rows, user_embeddings, user_biases, is_shown), obs=watched)

    def held_out(user: tuple[Array, Array, Array]) -> Array:
        embedding, bias, columns = user
        return jax.nn.sigmoid(film_embeddings[columns] @ embedding + bias + film_biases[columns])

    # evaluated once a draw; the compiler removes it from the leapfrogs
    phx.deterministic("held_out", lax.map(held_out, (user_embeddings, user_biases, columns), batch_size=ROWS))


def main(options: DemoOptions) -> phx.Posterior:
    """Run the demo with 100 leapfrogs a draw; the first half of warm-up tunes the step size from 1e-2."""
    require("sklearn.metrics")  # needed after the run: fail before it
    sizes = options.sizes(chains=2, warmup=1000, draws=500)
    data = load(options)
    dimensions = DIMENSIONS_GENERATED if data.name == "movielens-generated" else DIMENSIONS
    entries = hide(data.matrix, HIDDEN, options.seed)
    two = ends_of(data.matrix)
    users, films = data.matrix.shape
    num_hidden = entries.columns.shape[1]
    mathematics = MATHEMATICS.format(users=users, films=films, dimensions=dimensions, hidden=num_hidden)
    introduce(f"Who watches what: {data.name}", mathematics, f"{data.source}; {data.licence}")
    mesh = options.mesh(jax.device_count())
    arguments = {**phx.shard(entries._asdict(), mesh), "dimensions": dimensions}
    tuned_steps = sizes["num_warmup"] // 2
    posterior = phx.mcmc(
        model,
        arguments,
        kernel=phx.hmc(100, initial_step_size=1e-2, tuned_steps=tuned_steps, step_size_jitter=0.0, metric="identity"),
        **sizes,
        seed=options.seed,
        mesh=mesh,
        keep=["film_biases"],
        reducers={
            "held_out": phx.reduce(lambda values: values["held_out"], phx.reducers.moments()),
            "best": best_of(two, entries),
        },
        matmul_precision=options.precision,
    )
    best = phx.maximize(model, arguments, mesh=mesh, seed=options.seed)
    truth = np.take_along_axis(data.matrix, entries.columns, axis=1)
    probabilities = {
        "posterior": posterior.reduced["held_out"].mean,
        "MAP": best.values["held_out"],
        "popularity": popularity(entries),
    }
    scores = {name: score_held_out(truth, values) for name, values in probabilities.items()}
    shares = posterior.reduced["best"].counts / posterior.reduced["best"].counts.sum(1, keepdims=True)
    numbers, text = headline(data, scores, shares, two)
    calibration = calibrate(probabilities["posterior"].ravel().astype(np.float64), truth.ravel())
    titles = list(data.titles) if data.titles else [f"film {i}" for i in range(films)]
    figures = {
        "log_density_and_acceptance": traces(posterior.stats),
        "recommendations": recommendations(shares, two, data.matrix, titles),
        "reliability": reliability_figure(calibration, "share watched", "predicted probability", "hidden entries"),
    }
    if data.genres is not None:  # a film of several genres counts for each
        names = sorted({genre for genres in data.genres for genre in genres})
        of_film = np.array([[name in genres for name in names] for genres in data.genres], float)
        figures["genres"] = recommendations(shares @ of_film, two, data.matrix, names)
    finish(posterior, numbers, text, figures, options.out)
    return posterior


def load(options: DemoOptions) -> phx.datasets.Watched:
    """Return the real ratings, or a smaller simulated matrix if they are missing and no folder is named."""
    try:
        return phx.datasets.movielens(options.data)
    except FileNotFoundError as error:
        if options.data is not None:
            raise
        STDOUT.say(f"The matrix is generated, because the real one is missing. {error}")
        return phx.datasets.generate_movielens()


def ends_of(watched: np.ndarray) -> dict[str, int]:
    """Return the users with the most and the fewest films."""
    counts = watched.sum(1, dtype=np.int64)
    return {"most": int(counts.argmax()), "fewest": int(counts.argmin())}


def best_of(users: Mapping[str, int], entries: Entries) -> Reduce:
    """Return a reducer that counts how often each film ranks first among a user's unwatched films, `(users, films)`."""
    numbers = list(users.values())
    unseen = entries.watched[numbers].astype(bool) & entries.is_shown[numbers]

    def best(values: Mapping[str, Array]) -> Array:
        embeddings, biases = (phx.take_rows(values[name], numbers) for name in ("user_embeddings", "user_biases"))
        logits = embeddings @ values["film_embeddings"].T + biases[:, None] + values["film_biases"][None]
        return jnp.argmax(jnp.where(unseen, -jnp.inf, logits), axis=1).astype(jnp.float32)

    return phx.reduce(best, phx.reducers.histogram(np.arange(entries.watched.shape[1] + 1) - 0.5))


def popularity(entries: Entries) -> np.ndarray:
    """Return probabilities of the hidden entries from the fraction of shown users who watched the film."""
    num_shown = entries.is_shown.sum(0, dtype=np.int64)
    rate = ((entries.watched * entries.is_shown).sum(0, dtype=np.int64) + 1) / (num_shown + 2)
    return rate[entries.columns]


def score_held_out(truth: Shaped[np.ndarray, "..."], probability: np.ndarray) -> tuple[float, float]:
    """Return the area under the ROC curve, and the log loss in nats, of predictions of hidden entries."""
    metrics = require("sklearn.metrics")
    p = np.clip(probability.ravel().astype(np.float64), 1e-7, 1 - 1e-7)
    return float(metrics.roc_auc_score(truth.ravel(), p)), float(metrics.log_loss(truth.ravel(), p))


def headline(
    data: phx.datasets.Watched,
    scores: Mapping[str, tuple[float, float]],
    shares: np.ndarray,
    two: Mapping[str, int],
) -> tuple[dict[str, Any], str]:
    """Return the main results, by name and in words."""
    numbers: dict[str, Any] = {"data": data.name, "source": data.source}
    lines = []
    for name, (auc, log_loss) in scores.items():
        numbers |= {f"auc_{name.lower()}": auc, f"log_loss_{name.lower()}": log_loss}
        lines.append(f"hidden entries, {name}: AUC {auc:.4f}, log loss {log_loss:.4f}")
    for (which, user), share in zip(two.items(), shares, strict=True):
        films = int((share > 0).sum())
        num_watched = int(data.matrix[user].sum())
        numbers |= {f"films_recommended_{which}": films, f"effective_films_{which}": effective(share)}
        lines.append(
            f"user {user}, who watched {num_watched:,} films: {films} different films rank first in some draw, "
            f"as diverse as {effective(share):.1f} equally frequent ones"
        )
    return numbers, "\n".join(lines)


def effective(share: Float[np.ndarray, "film"]) -> float:
    """Return the effective number of films: the exponential of the entropy of their shares."""
    positive = share[share > 0]
    return float(np.exp(-np.sum(positive * np.log(positive))))


def traces(stats: Mapping[str, np.ndarray]) -> Figure:
    """Draw log density and acceptance rate of every draw, chain by chain."""
    figure = style.new_figure(7.5, 4.4)
    panels = figure.subplots(2, 1, sharex=True)
    for axes, name in zip(panels, ("log_density", "acceptance_rate"), strict=True):
        for chain, values in enumerate(stats[name]):
            color = style.CHAINS[chain % len(style.CHAINS)]
            axes.plot(np.arange(1, len(values) + 1), values, color=color, linewidth=0.8, label=f"chain {chain}")
        style.finish(axes, name.replace("_", " "), "draw" if axes is panels[-1] else "", "")
    style.whole_numbers(panels[-1].xaxis)
    if len(stats["log_density"]) <= len(style.CHAINS):
        style.explain(figure)
    return figure


def recommendations(
    shares: Float[np.ndarray, "user item"], users: Mapping[str, int], matrix: np.ndarray, names: list[str]
) -> Figure:
    """Draw, for each user, the films or genres that most often rank first, with their share of the draws."""
    figure = style.new_figure(9.0, 4.2)
    panels = figure.subplots(1, len(users), sharex=True)
    for axes, (which, user), share in zip(panels, users.items(), shares, strict=True):
        order = np.argsort(-share, kind="stable")[:SHOWN]
        order = order[share[order] > 0][::-1]
        axes.barh([style.printable(names[i], 30) for i in order], share[order], color=COLORS[which])
        title = f"User {user}: {which} films ({int(matrix[user].sum()):,})"
        style.finish(axes, title, "share of draws", "", grid="x")
    return figure
