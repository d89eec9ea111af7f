"""Messages that no other test reads: each names the argument that is wrong, and the way out."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoIAFNormal, AutoNormal

import phalanx as phx
from phalanx.diagnostics.psis import smooth
from phalanx.mesh.compatibility import workarounds


def model(y=None):
    x = phx.sample("x", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(x, 1.0), obs=y)


def run(**options):
    return lambda: phx.mcmc(model, progress=False, **{"data": {"y": np.zeros(3)}, **options})


def fit(**options):
    return lambda: phx.fit(model, phx.guides.mean_field, {"y": np.zeros(3)}, progress=False, **options)


def data(y):
    return run(data={"y": y})


WRONG: Any = 3
NAMES: Any = ["w", "b"]
WORD: Any = "1"
X, W = jax.numpy.ones((4, 2)), jax.numpy.ones((2, 3))
DAYS = np.array(["2020-01-01", "2020-01-03"], "datetime64[D]")
SETS = {"y": np.zeros((2, 3)), "g": np.array([1, "a"], object)}

IN_DATA = {
    "durations": (data(DAYS - DAYS[0]), r"y holds durations .* / np.timedelta64\(1, 'D'\)"),
    "complex": (data(np.ones(2, complex)), r"y is complex .* Give data: y.real and data: y.imag"),
    "nothing there": (
        run(data={"y": np.ma.masked_all(2, int)}, missing="impute"),
        "data: y has no entry that is not missing. Leave the argument out",
    ),
    "missing": (run(missing="drop"), """missing: expected "impute", or None.*got 'drop'"""),
    "no column": (run(data=[1.0], each="g"), "data: expected a table or a dict with a column 'g'; got list"),
    "kinds of names": (
        run(data=SETS, each="g"),
        "each='g': its values have several types: int, str. Give names",
    ),
    "no axis": (run(data=SETS, each={"y": 2}), r"each: y has shape \(2, 3\), and no axis 2. Give the number of one"),
    "dims": (run(dims={"x": ["a/b"]}), "dims.*expected words without '/'"),
    "coords": (
        run(coords={"x": ["a", "a"]}, dims={"x": ["x"]}),
        "coords.* has the name 'a' twice.*give each entry its own",
    ),
}

OF_RUNS = {
    "keep": (run(keep=3), r"keep: expected names of variables, such as \['mean'\].*got 3"),
    "until": (run(until=phx.until(r_hat=1.1), keep=[]), "until: r_hat= and ess= need stored draws.*Keep a variable"),
    "tuning": (run(tuning=3), "tuning: expected a posterior, whose tuning to use; got 3"),
    "superchains": (lambda: phx.superchains(1), "superchains: count must be 2 or more"),
    "centring": (lambda: phx.nuts(centring=WRONG), 'centring must be "auto", names of variables'),
    "edges": (
        lambda: phx.reducers.histogram(np.array(["a"])),
        r"edges must be numbers, such as \[-1.0, 0.0, 1.0\]; got",
    ),
    "log weights": (lambda: smooth(np.array([0.0, np.nan])), "a log weight is NaN. Leave such draws out"),
    "processes": (
        lambda: phx.initialize("host:1", num_processes=2),
        "initialize: .*process_id=None belong together: give all three",
    ),
    "option": (
        lambda: phx.initialize("host:1", num_processes=2, process_id=0, tmeout=3),
        "initialize: there is no option .*tmeout.* it takes",
    ),
}

OF_FITS = {
    "until": (fit(until=3), r"until: expected phx.until\(seconds=...\), False .*got 3"),
    "steps": (fit(each={"y": 0}, num_steps=0), "num_steps: with each= expected one step or more; got 0"),
    "transform": (lambda: phx.guides.flow(transform="spline"), "guides: transform must be .*got 'spline'"),
    "network": (lambda: phx.network("net", WRONG), r"phx.network.*expected a network, such as phx.networks.from_nnx"),
    "random network": (
        lambda: phx.random_network("net", WRONG, WRONG), "random_network.*such as phx.networks.from_nnx.*got 3 and 3",
    ),
    "guide of NumPyro": (
        lambda: phx.fit(model, AutoIAFNormal(model), {"y": np.ones(3)}),
        r"guide: AutoIAFNormal is a guide that numpyro.infer.SVI makes .* Use phx.guides.flow\(\)",
    ),
    "class of NumPyro": (lambda: phx.fit(model, AutoNormal), r"guide: AutoNormal is .* Use phx.guides.mean_field\(\)"),
    "row by its number": (
        lambda: phx.fit(
            one_row, phx.guides.mean_field(), {"y": np.ones(8), "inv": np.ones(8)}, batch_size=4, num_steps=2
        ),
        r"batch_size: the model reads single rows of 'inv' by their number, as in inv\[0\].*as a number of its own",
    ),
    "mask of couplings": (
        lambda: phx.flows.Couplings.init(jax.random.key(0), 2),
        r"Couplings.init: stays must be a mask .*\(layer, coordinate\), such as phx.flows.digits\(\[size\]\); got 2",
    ),
    "size of a flow": (
        lambda: phx.flows.InverseAutoregressive.init(jax.random.key(0), 0),
        r"init: size must be the number of coordinates, a whole number; got 0",
    ),
    "widths of a flow": (
        lambda: phx.flows.Coupling.init(jax.random.key(0), 2, (0,)),
        r"init: hidden must be the widths .*\(32, 32\); got \(0,\)",
    ),
}  # fmt: skip


def one_row(y, inv):
    w = phx.sample("w", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(w * inv[0], 1.0).expand(y.shape), obs=y)


def step(w, batch):
    return w, {}


ENSEMBLES = {
    "init": (lambda: phx.ensemble(lambda: 0.0, step, 2), r"init must take a key, as in init\(key\); got \(\)"),
    "state": (lambda: phx.ensemble(lambda key: "words", step, 2), "init must return a tree of arrays.*eqx.partition"),
    "names of weights": (
        lambda: phx.ensembles.last_layer_laplace(X, NAMES, 1.0),
        r"last_layer_laplace: weights must be an array of numbers; got \['w', 'b'\]. Give the arrays themselves",
    ),
    "precision": (
        lambda: phx.ensembles.last_layer_laplace(X, W, WORD),
        "last_layer_laplace: prior_precision must be a positive number, got '1'",
    ),
    "collections": (
        lambda: phx.ensembles.learner(
            lambda key: {"params": 0.0, "batch_stats": 0.0}, lambda w, x: x, lambda out, y: 0.0, optax.sgd(0.1)
        ).init(jax.random.key(0)),
        "learner: init makes, besides parameters, the collections 'batch_stats'.*linen_learner",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(*case, id=f"{area}: {name}")
        for area, cases in {"data": IN_DATA, "runs": OF_RUNS, "fits": OF_FITS, "ensembles": ENSEMBLES}.items()
        for name, case in cases.items()
    ],
)
def test_a_message_names_the_argument_and_the_way_out(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_an_unknown_work_around_is_refused_with_those_there_are(monkeypatch):
    monkeypatch.setenv(workarounds.VARIABLE, "everything")
    with pytest.raises(ValueError, match="unknown name: 'everything'. Set it to 'off', or to names from .*group-sums"):
        workarounds._turned_off.__wrapped__()
