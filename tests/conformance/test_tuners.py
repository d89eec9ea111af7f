"""Laws of every tuner, and a tuner written outside of the package, used through `Kernel(tuners=...)`."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.conformance.tuners import SIZES, TUNERS, Tuning, sample, sums

import phalanx as phx
from phalanx.adaptation.warm_up import WarmUp, WarmUpState
from phalanx.kernels import StepSize, Sums, Tuner
from phalanx.run.state import RunState


def equal(a: Any, b: Any) -> bool:
    """Return whether two trees have the same numbers, to the last bit."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    leaves, others = jax.tree.leaves(a), jax.tree.leaves(b)
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(leaves, others, strict=True))


def pure(method: Any, *arguments: Any) -> Any:
    """Return the result of a method, after checks that a second call returns it again and changes no argument."""
    before = copy.deepcopy(arguments)
    found = method(*arguments)
    assert equal(before, arguments) and equal(found, method(*arguments))
    return found


def plain(state: Any) -> Any:
    """A state as a file holds it."""
    return RunState(*[None] * len(RunState._fields))._replace(tuning=state).plain.tuning  # pyright: ignore[reportArgumentType]


def changed(a: Tuning, b: Tuning) -> set[str]:
    return {name for name in Tuning._fields if not equal(getattr(a, name), getattr(b, name))}


class Listening(Tuner):
    """A tuner whose calls in a warm-up are held against the laws."""

    def __init__(self, tuner: Tuner):
        self.tuner, self.calls, self.tunings = tuner, set(), []
        self.sets, self.every_draw, self.renews = tuner.sets, tuner.every_draw, tuner.renews  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def learns_from(self):
        return self.tuner.learns_from

    def init(self, tuning, beginning, stage):
        return self._obeys("init", tuning, beginning, stage)

    def update(self, state, sums, tuning, stage):
        return self._obeys("update", state, sums, tuning, stage)

    def searches(self, state):
        return pure(self.tuner.searches, state)

    def next_window(self, state, sample, stage):
        return self._obeys("next_window", state, sample, stage)

    def apply(self, state, tuning, stage):
        found = pure(self.tuner.apply, state, tuning, stage)
        assert equal(found, self.tuner.apply(plain(state), tuning, stage))
        self.tunings.append((stage, self.tuner.searches(state), found))
        return found

    def _obeys(self, name: str, *arguments: Any) -> Any:
        self.calls.add(name)
        state = pure(getattr(self.tuner, name), *arguments)
        assert isinstance(state, tuple) and hasattr(state, "_fields") and equal(plain(state), state)
        return state


def warmed_up(tuner: Tuner, num_warmup: int) -> WarmUpState:
    """A warm-up of a tuner on made-up draws."""
    random = np.random.default_rng(0)
    warm_up = WarmUp((tuner,), Tuning(), num_warmup)
    state = warm_up.begin(sums(random, 1, Tuning()))
    while not warm_up.over(state):
        state = warm_up.learn(state, sums(random, warm_up.length(state), state.tuning))
        if warm_up.ends_window(state):
            state, _ = warm_up.next_window(state, sample(random, 10) if warm_up.samples_window(state) else None)
    return state


@pytest.mark.parametrize("name", TUNERS)
def test_methods_are_pure_and_states_survive_a_file(name):
    listening = Listening(TUNERS[name])
    warm_up = warmed_up(listening, 60)
    assert warm_up.iterations == 60 and listening.calls == {"init", "update", "next_window"}
    assert equal(warm_up.tuning, warmed_up(TUNERS[name], 60).tuning)


@pytest.mark.parametrize("name", TUNERS)
def test_within_a_window_it_sets_what_it_names_and_in_the_types_there_were(name):
    listening = Listening(TUNERS[name])
    tuned = warmed_up(listening, 60).tuning
    tunings = [(stage, tuning) for stage, searches, tuning in listening.tunings if not searches]
    for (stage, before), (later, after) in pairwise(tunings):
        if stage == later:
            assert changed(before, after) <= set(listening.sets)
    for field in set(Tuning._fields) - {"metric"}:
        assert np.asarray(getattr(tuned, field)).dtype == np.asarray(getattr(Tuning(), field)).dtype
    assert changed(Tuning(), tuned)


@pytest.mark.parametrize("name", TUNERS)
def test_without_a_warm_up_hyperparameters_are_those_given(name):
    tuned = warmed_up(TUNERS[name], 0).tuning
    for field in set(Tuning._fields) - {"metric"}:
        np.testing.assert_allclose(getattr(tuned, field), getattr(Tuning(), field), rtol=1e-6)
    if tuned.metric is not None:
        assert all((part == 1).all() for part in tuned.metric.variance) and not tuned.metric.correlated


@pytest.mark.parametrize("name", TUNERS)
def test_equal_tuners_are_one(name):
    other = copy.deepcopy(TUNERS[name])
    assert other == TUNERS[name] and hash(other) == hash(TUNERS[name])
    assert sum(other == tuner for tuner in TUNERS.values()) == 1


class Scale(NamedTuple):
    log_scale: float
    rounds: int
    seen: int

    @property
    def scale(self) -> float:
        return math.exp(self.log_scale)


@dataclass(frozen=True)
class RobbinsMonro(phx.kernels.Tuner):
    """Tunes a random walk's scale to an acceptance rate, and counts the draws that windows show it."""

    target: float
    sets: ClassVar[tuple[str, ...]] = ("step_size",)

    @property
    def learns_from(self):
        return "draws"

    def init(self, tuning: Any, beginning: phx.kernels.Sums, stage: phx.kernels.Stage) -> Scale:
        return Scale(math.log(tuning.step_size), 0, 0)

    def update(self, state: Scale, sums: phx.kernels.Sums, tuning: Any, stage: phx.kernels.Stage) -> Scale:
        rounds = state.rounds + 1
        move = 3 * rounds**-0.7 * (sums.mean("acceptance_rate") - self.target)
        return state._replace(log_scale=state.log_scale + move, rounds=rounds)

    def next_window(self, state: Scale, sample: phx.kernels.Sample | None, stage: phx.kernels.Stage) -> Scale:
        assert sample is not None
        return state._replace(seen=state.seen + len(sample.position[0]))

    def apply(self, state: Scale, tuning: Any, stage: phx.kernels.Stage) -> Any:
        return tuning._replace(step_size=np.asarray(state.scale, tuning.step_size.dtype))


@dataclass(frozen=True)
class Jitter(phx.kernels.Tuner):
    """Sets the jitter of `phx.hmc` to a share of draws that were not accepted."""

    sets: ClassVar[tuple[str, ...]] = ("jitter",)

    def init(self, tuning, beginning, stage):
        return Scale(math.log(tuning.jitter), 0, 0)

    def update(self, state, sums, tuning, stage):
        return state._replace(log_scale=math.log(max(1e-3, 0.9 * (1 - sums.mean("acceptance_rate")))))

    def apply(self, state, tuning, stage):
        return tuning._replace(jitter=np.asarray(state.scale, tuning.jitter.dtype))


def gaussian():
    phx.sample("x", dist.Normal(np.zeros(2), np.array([1.0, 2.0])))


SIZE = {"num_chains": 4, "num_warmup": 200, "num_samples": 300, "progress": False}


class Counting(StepSize):
    """A tuner that inherits from one of ours, and is arithmetic on the host."""

    def update(self, state, sums, tuning, stage):
        math.sqrt(sums.mean("acceptance_rate"))  # of a number that JAX traces it is an error
        return super().update(state, sums, tuning, stage)


def test_a_tuner_that_inherits_from_ours_learns_on_the_host():
    tuning = phx.hmc(4).tuning
    assert WarmUp((StepSize(0.8),), tuning, 100).runs_on_devices
    assert not WarmUp((Counting(0.8),), tuning, 100).runs_on_devices
    kernel = replace(phx.rwmh(), tuners=(Counting(0.3),))
    found = phx.mcmc(gaussian, kernel=kernel, **{**SIZE, "num_warmup": 50})
    expected = phx.mcmc(gaussian, kernel=phx.rwmh(target_acceptance=0.3), **{**SIZE, "num_warmup": 50})
    np.testing.assert_array_equal(found.draws["x"], expected.draws["x"])


def test_a_tuner_of_a_stranger_takes_the_place_of_ours_and_goes_on_from_a_file(tmp_path):
    kernel = replace(phx.rwmh(initial_step_size=1e-3), tuners=(RobbinsMonro(0.4),))
    saved = []

    def save(report):
        if report.phase == "warm-up" and report.done == 100:  # the first window has ended
            saved.append(report.so_far().save(tmp_path / f"{len(saved)}.npz"))

    sampler = phx.compile(gaussian, kernel=kernel, num_chains=SIZE["num_chains"])
    whole = sampler.run(1, num_warmup=200, num_samples=300, progress=False, on_block=save)
    assert whole.stats["acceptance_rate"].mean() == pytest.approx(0.4, abs=0.1)
    assert whole.warmup["step_size"][0] == pytest.approx(1e-3) and whole.warmup["step_size"][-1] > 0.1
    state = phx.Posterior.load(saved[-1]).state
    assert state.in_warm_up and state.warming.schedule.states[0].seen == 100 * SIZE["num_chains"]
    again = sampler.continue_run(phx.Posterior.load(saved[-1]), SIZE["num_samples"])
    np.testing.assert_array_equal(again.draws["x"], whole.draws["x"])


@pytest.mark.slow
def test_a_tuner_of_a_stranger_stands_beside_ours():
    kernel = phx.hmc(4, metric="diagonal")
    kernel = replace(kernel, tuners=(*kernel.tuners, Jitter()))
    found = phx.mcmc(gaussian, kernel=kernel, seed=1, **SIZE)
    assert set(found.warmup) >= {"step_size", "jitter"} and found.warmup["jitter"][-1] != found.warmup["jitter"][0]
    assert found.warmup["metric_changed"].any() and 0.6 < found.stats["acceptance_rate"].mean() < 0.99


class Changing(Jitter):
    """A tuner that has no hash, as one whose fields may change."""

    __hash__ = None  # pyright: ignore[reportAssignmentType]


@pytest.mark.parametrize("tuners", [[Jitter()], (Jitter,), (0.8,), Jitter(), (Changing(),)])
def test_other_objects_than_tuners_are_refused(tuners):
    with pytest.raises(TypeError, match=r"^hmc\(num_steps=4, step_size=None\): tuners must be a tuple of tuners"):
        replace(phx.hmc(4), tuners=tuners)


def test_chains_run_ahead_only_where_the_next_round_is_known():
    random = np.random.default_rng(0)
    aheads = {}
    for name, tuners in {"ours": (), "a stranger's": (Jitter(),)}.items():
        tuning = phx.hmc(4).tuning
        warm_up = WarmUp((RobbinsMonro(0.4), *tuners), tuning, 100, runs_ahead=True)
        state = warm_up.begin(Sums.nothing(SIZES))
        state = warm_up.learn(state, sums(random, warm_up.length(state), tuning))
        aheads[name] = warm_up.ahead(state)
    assert aheads["ours"] > 0 == aheads["a stranger's"]
