"""What the compiled sampling block says to other devices: read from its HLO."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.stages import Compiled

import phalanx as phx

X = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
Y = X.sum(1)


def many_sites(x, y):
    weights = phx.sample("weights", dist.Normal(0.0, 1.0).expand([3]))
    others = [phx.sample(f"site{i}", dist.Normal(0.0, 1.0).expand([i + 1])) for i in range(6)]
    noise = phx.sample("noise", dist.HalfNormal(1.0))
    phx.sample("y", dist.Normal(x @ weights + sum(other.sum() for other in others), noise), obs=y)


def with_a_local_variable(x, y):
    weights = phx.sample("weights", dist.Normal(0.0, 1.0).expand([3]))
    noise = phx.sample("noise", dist.HalfNormal(1.0))
    shift = phx.sample("shift", dist.Normal(0.0, 1.0).expand([x.shape[0]]))
    phx.sample("y", dist.Normal(x @ weights + shift, noise), obs=y)


DATA_GROUPS = (
    "replica_groups={{0,1,2,3},{4,5,6,7}}",
    "replica_groups=mesh['chain'=2,'data'=4,'model'=1] {'data'}",
)
"""The data groups of chain 0 and of chain 1, as JAX 0.10 and as JAX 0.11 write them."""


def computations(hlo: str) -> dict[str, str]:
    """The text of each computation of a module, by name."""
    pieces = re.split(r"\n(?=%?\S+ \(.*\{|ENTRY)", hlo)
    return {match[1]: piece for piece in pieces if (match := re.match(r"(?:ENTRY )?%?(\S+) \(", piece))}


def loops(hlo: str) -> dict[str, str]:
    """The computations that are bodies of while loops."""
    bodies = set(re.findall(r" while\(.*?body=%?([\w.\-]+)", hlo))
    return {name: text for name, text in computations(hlo).items() if name in bodies}


def operations(text: str, *names: str) -> list[str]:
    """The lines that apply an operation of one of `names`; what only mentions one, as an operand does, has no call."""
    return re.findall(rf"^.* = .* (?:{'|'.join(names)})(?:-start)?\(.*", text, re.MULTILINE)


def all_reduces(text: str) -> list[str]:
    return operations(text, "all-reduce")


def sums_of_floats(operations: list[str]) -> list[str]:
    return [operation for operation in operations if "f32[" in operation.split(" all-reduce")[0]]


def text_of(program: Compiled | None) -> str:
    text = None if program is None else program.as_text()
    assert text is not None
    return text


def sampling_hlo(model, mesh, data, num_chains=4):
    sampler = phx.compile(model, data, kernel=phx.hmc(num_steps=5), mesh=mesh, num_chains=num_chains)
    return text_of(sampler.executables.record)


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_chains", [pytest.param(2, marks=pytest.mark.slow), 4], ids=["one lane", "two lanes"]
)  # fmt: skip
@pytest.mark.parametrize("model", [pytest.param(many_sites, marks=pytest.mark.slow), with_a_local_variable])
def test_one_all_reduce_per_leapfrog_and_a_message_over_chains_per_round(model, num_chains, mesh_of):
    mesh = mesh_of(2, 4)
    hlo = sampling_hlo(model, mesh, phx.shard({"x": X, "y": Y}, mesh), num_chains)
    bodies = loops(hlo)
    # Inside a leapfrog loop: a body with an all-reduce that calls no other loop with one.
    communicating = {name: all_reduces(text) for name, text in bodies.items() if all_reduces(text)}
    inner = [name for name in communicating if not any(o in bodies[name] for o in communicating if o != name)]
    inner = [name for name in inner if sums_of_floats(communicating[name])]
    assert len(inner) == 1 and len(communicating[inner[0]]) == 1
    # The last leapfrog of a draw stands apart; kinetic energies go with it. When the draws of a round are added up,
    # devices agree on those that are finite.
    everywhere = all_reduces(hlo)
    assert len(sums_of_floats(everywhere)) == 2
    assert len(everywhere) == 2 + (model is with_a_local_variable)
    for operation in everywhere:
        assert any(groups in operation for groups in DATA_GROUPS)
    (at_the_end_of_a_round,) = operations(hlo, "all-gather")
    assert not any(groups in at_the_end_of_a_round for groups in DATA_GROUPS)
    assert not operations(hlo, "all-to-all", "collective-permute", "reduce-scatter")


@pytest.mark.parametrize("model", [pytest.param(many_sites, marks=pytest.mark.slow), with_a_local_variable])
@pytest.mark.parametrize(
    "kernel, turning, tunes",
    [(phx.chees(), 0, False), (phx.mams(), 5, False), (phx.laps(), 5, True)],
    ids=["chees", "mams", "laps"],
)
@pytest.mark.slow
def test_trajectories_of_many_chains_sum_once_a_leapfrog(model, kernel, turning, tunes, mesh_of):
    """MAMS more where variables are sharded: each of two turns towards the whole gradient measures three lengths.

    LAPS has a second loop, of unadjusted trajectories, which adds up energy errors over chains after each leapfrog.
    """
    mesh = mesh_of(2, 4)
    data = phx.shard({"x": X, "y": Y}, mesh)
    sampler = phx.compile(model, data, kernel=kernel, mesh=mesh, num_chains=4)
    bodies = loops(text_of(sampler.executables.record))
    calls = {name: [o for o in bodies if o != name and o in text] for name, text in bodies.items()}
    innermost = [text for name, text in bodies.items() if sums_of_floats(all_reduces(text)) and not calls[name]]
    once = 1 + turning * (model is with_a_local_variable)
    expected = [once, once + 1] if tunes else [once]
    assert sorted(len(all_reduces(text)) for text in innermost) == expected


def test_messages_are_the_gradient_of_global_variables_and_a_total(mesh_of):
    mesh = mesh_of(2, 4)  # where two lanes are compiled already
    hlo = sampling_hlo(with_a_local_variable, mesh, phx.shard({"x": X, "y": Y}, mesh), num_chains=4)
    sent = [re.findall(r"f32\[([\d,]*)\]", op.split(" all-reduce(")[0]) for op in sums_of_floats(all_reduces(hlo))]
    sizes = sorted(sum(int(np.prod([int(d) for d in s.split(",") if d])) for s in shapes) for shapes in sent)
    # weights and noise; the last leapfrog of a draw also the log density in two floats, and two kinetic energies
    assert sizes == [2 * (3 + 1), 2 * (3 + 1 + 2 + 2)]


def factorisation(watched):
    users, films = watched.shape
    film_embeddings = phx.sample("film_embeddings", dist.Normal(0.0, 1.0).expand([films, 3]))
    film_biases = phx.sample("film_biases", dist.Normal(0.0, 1.0).expand([films]))
    user_embeddings = phx.sample("user_embeddings", dist.Normal(0.0, 1.0).expand([users, 3]))
    user_biases = phx.sample("user_biases", dist.Normal(0.0, 1.0).expand([users]))

    def rows(embeddings, biases):
        logits = embeddings @ film_embeddings.T + biases[:, None] + film_biases[None]
        return dist.Bernoulli(logits=logits).to_event(1)

    phx.sample("watched", phx.blocked(rows, user_embeddings, user_biases, block=2), obs=watched)


@pytest.mark.slow
def test_a_factorisation_sends_the_gradients_of_the_films_and_a_total(mesh_of):
    mesh, films = mesh_of(1, 8), 5
    watched = (np.random.default_rng(0).random((32, films)) < 0.3).astype(np.int8)
    hlo = sampling_hlo(factorisation, mesh, phx.shard({"watched": watched}, mesh), num_chains=1)
    sent = [re.findall(r"f32\[([\d,]*)\]", op.split(" all-reduce(")[0]) for op in sums_of_floats(all_reduces(hlo))]
    sizes = sorted(sum(int(np.prod([int(d) for d in s.split(",") if d])) for s in shapes) for shapes in sent)
    gradients = films * 3 + films
    # on the way the gradients alone; in the last leapfrog of a draw the log density, and two kinetic energies
    assert sizes == [gradients, gradients + 2 + 2]
    assert not operations(hlo, "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


def mnist(pixels, digit):
    weights = phx.sample("weights", dist.Normal(0.0, 1.0).expand([5, 10]))
    phx.sample("digit", dist.CategoricalLogits(pixels @ weights), obs=digit)


def movielens(user, film, rating):
    spread = phx.sample("spread", dist.HalfNormal(1.0))
    users = phx.sample("users", dist.Normal(0.0, spread).expand([6, 2]).to_event(2))
    films = phx.sample("films", dist.Normal(0.0, 1.0).expand([4, 2]).to_event(2))
    phx.sample("rating", dist.Normal(jnp.sum(users[user] * films[film], -1), 1.0), obs=rating)


def covertype(x, cover):
    scales = phx.sample("scales", dist.HalfCauchy(1.0).expand([3]))
    weights = phx.sample("weights", dist.Normal(0.0, jnp.asarray(scales)))
    phx.sample("cover", dist.Bernoulli(logits=x @ weights - x.mean()), obs=cover)


def eight_schools(effect, error):
    mean = phx.sample("mean", dist.Normal(0.0, 5.0))
    spread = phx.sample("spread", dist.HalfCauchy(5.0))
    theta = phx.sample("theta", dist.Normal(mean, spread).expand([len(effect)]))
    phx.sample("effect", dist.Normal(theta, error), obs=effect)


def data_of(rows):
    random = np.random.default_rng(rows)
    return {
        mnist: {"pixels": random.random((rows, 5), np.float32), "digit": random.integers(0, 10, rows)},
        movielens: {
            "user": random.integers(0, 6, rows),
            "film": random.integers(0, 4, rows),
            "rating": random.normal(size=rows).astype(np.float32),
        },
        covertype: {"x": random.random((rows, 3), np.float32), "cover": random.integers(0, 2, rows)},
        eight_schools: {
            "effect": random.normal(size=rows).astype(np.float32),
            "error": 1.0 + random.random(rows, np.float32),
        },
    }


def collectives_of_an_evaluation(model, data, mesh):
    target = phx.Target(model, phx.shard(data, mesh), mesh=mesh)
    specs = target.position_specs()

    def evaluate(arrays, position):
        total, gradient = target.on_device(arrays).value_and_grad(position)
        return total.value, gradient

    run = jax.shard_map(
        evaluate, mesh=mesh, in_specs=(target.array_specs(), specs), out_specs=(jax.P(), specs), check_vma=False
    )
    position = {name: target._pad(name, value) for name, value in target.initial_position(jax.random.key(0)).items()}
    text = text_of(jax.jit(run).lower(target.place_arrays(), position).compile())
    kinds = "all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter"
    return {kind: count for kind in kinds if (count := len(operations(text, kind)))}


@pytest.mark.parametrize("rows", [16, 13])
@pytest.mark.parametrize("model, others", [(mnist, 0), (movielens, 0), (covertype, 1), (eight_schools, 0)])
def test_an_evaluation_of_row_wise_programs_is_one_all_reduce(model, others, rows, mesh_of):
    """A mean over all rows, by which covertype's predictors are centred, is another one."""
    found = collectives_of_an_evaluation(model, data_of(rows)[model], mesh_of(1, 4))
    assert found == {"all-reduce": 1 + others}


def test_a_second_run_of_the_same_model_and_shapes_compiles_nothing():
    compiled = []

    def listen(event: str, duration_secs: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration_secs)

    def run(**changes):
        arguments = {"data": {"x": X, "y": Y}, "kernel": phx.hmc(num_steps=3), "seed": 0, "num_samples": 7} | changes
        return phx.mcmc(with_a_local_variable, num_warmup=5, progress=False, **arguments)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        assert run().timing.compilations == 4
        assert len(compiled) >= 3
        compiled.clear()
        for changes in (
            {"seed": 1},
            {"num_samples": 9},
            {"data": {"x": X + 1, "y": Y}},
            {"kernel": phx.hmc(num_steps=4, target_acceptance=0.8, initial_step_size=0.3)},
        ):
            assert run(**changes).timing.compilations == 0
        assert compiled == []
    finally:
        jax.monitoring.clear_event_listeners()
