"""Networks of every library, and of two functions, as functions of their weights and as parts of programs."""

from __future__ import annotations

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec
from tests.slow import with_slow

import phalanx as phx
from phalanx.mesh.specs import path_of

eqx = pytest.importorskip("equinox", reason="Equinox is not installed")

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(16, 4)).astype(np.float32)
KEY = jax.random.key(0)
ALONG = PartitionSpec(None, "model")


class OfNNX(nnx.Module):
    def __init__(self, rngs):
        split = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "model"))
        self.first = nnx.Linear(4, 8, kernel_init=split, rngs=rngs)
        self.between = nnx.List([nnx.Linear(8, 8, rngs=rngs)])
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(self.features(x)))

    def features(self, x):
        return jnp.tanh(self.between[0](self.first(x)))


class OfLinen(linen.Module):
    @linen.compact
    def __call__(self, x):
        split = linen.with_partitioning(linen.initializers.lecun_normal(), (None, "model"))
        return linen.Dense(2)(jnp.tanh(linen.Dense(8, kernel_init=split, name="first")(x)))


class WithStatistics(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return self.norm(x)


def of_functions(key):
    return {"first": {"kernel": jax.random.normal(key, (4, 8))}, "last": jnp.ones((8, 2))}


MAKERS = {
    "nnx": lambda **kw: phx.networks.from_nnx(OfNNX, **kw),
    "linen": lambda **kw: phx.networks.from_linen(OfLinen(), X[:1], **kw),
    "equinox": lambda **kw: phx.networks.from_equinox(lambda key: eqx.nn.MLP(4, 2, 8, 1, key=key), **kw),
    "functions": lambda **kw: phx.networks.from_functions(
        of_functions, lambda p, x: jnp.tanh(x @ p["first"]["kernel"]) @ p["last"], **kw
    ),
}


def outputs_of(name, network, weights, x=X):
    if name == "equinox":
        return jax.vmap(lambda row: network.apply(weights, row))(x)
    return network.apply(weights, x)


def arrays(tree):
    return {path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


@pytest.mark.slow
def test_a_module_gives_what_its_own_library_says():
    with nnx.use_eager_sharding(False):  # there is no mesh for its partitioned weights
        module = OfNNX(nnx.Rngs(KEY))
    module.eval()
    network = phx.networks.from_nnx(OfNNX)
    weights = network.init(KEY)
    np.testing.assert_array_equal(network.apply(weights, X), module(X))
    np.testing.assert_array_equal(network.apply(weights, X, method="features"), module.features(X))
    linear = OfLinen()
    network = phx.networks.from_linen(linear, X[:1])
    variables = linen.unbox(linear.init(KEY, X[:1]))
    np.testing.assert_array_equal(network.apply(network.init(KEY), X), linear.apply(variables, X))
    module = eqx.nn.MLP(4, 2, 8, 1, key=KEY)
    network = phx.networks.from_equinox(lambda key: eqx.nn.MLP(4, 2, 8, 1, key=key))
    np.testing.assert_array_equal(outputs_of("equinox", network, network.init(KEY)), jax.vmap(module)(X))


@pytest.mark.parametrize("name", with_slow([*MAKERS], {"nnx"}))
def test_weights_are_arrays_and_gradients_are_theirs(name):
    network = MAKERS[name]()
    weights = network.init(KEY)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(weights))
    gradient = jax.jit(jax.grad(lambda w: jnp.sum(outputs_of(name, network, w) ** 2)))(weights)
    for path, leaf in arrays(gradient).items():
        assert np.abs(leaf).max() > 0, path
    others = jax.tree.map(jnp.zeros_like, weights)
    assert not np.asarray(outputs_of(name, network, others)).any()


@pytest.mark.parametrize("name", MAKERS)
def test_bfloat16_computes_near_and_keeps_the_weights(name):
    exact, low = MAKERS[name](), MAKERS[name](dtype=jnp.bfloat16)
    weights = low.init(KEY)
    assert {leaf.dtype for leaf in jax.tree.leaves(weights)} == {jnp.dtype("float32")}
    wanted, found = (jax.jit(lambda w, of=of: outputs_of(name, of, w))(weights) for of in (exact, low))
    assert found.dtype == jnp.float32 and not np.array_equal(found, wanted)
    np.testing.assert_allclose(found, wanted, rtol=0.05, atol=0.05 * np.abs(wanted).max())
    gradient = jax.jit(jax.grad(lambda w: outputs_of(name, low, w).sum()))(weights)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    program = str(jax.make_jaxpr(lambda w: outputs_of(name, low, w))(weights))
    assert "dot_general" in program and ":f32[8,2] = dot_general" not in program


@pytest.mark.parametrize("name", MAKERS)
def test_rematerialised_gradients_are_the_same(name):
    plain, anew = MAKERS[name](), MAKERS[name](remat=True)
    weights = plain.init(KEY)

    def gradient(network):
        return jax.grad(lambda w: jnp.sum(outputs_of(name, network, w) ** 2))(weights)

    jax.tree.map(np.testing.assert_allclose, gradient(plain), gradient(anew))
    assert "checkpoint" in str(jax.make_jaxpr(lambda w: outputs_of(name, anew, w))(weights)).replace(
        "remat", "checkpoint"
    )


def test_partition_metadata_are_read():
    for network in (MAKERS["nnx"](), MAKERS["linen"]()):
        specs = arrays(network.specs)
        assert specs["first.kernel"] == ALONG
        assert {spec for path, spec in specs.items() if path != "first.kernel"} == {PartitionSpec()}
    assert MAKERS["equinox"]().specs is None


def test_a_rule_by_path_says_the_rest():
    for name, path in (("equinox", "layers.0.weight"), ("functions", "first.kernel")):
        network = MAKERS[name](spec=lambda p, shape, path=path: ("model", None) if p == path else None)
        specs = arrays(network.specs)
        assert specs[path] == PartitionSpec("model", None)
        assert {spec for other, spec in specs.items() if other != path} == {PartitionSpec()}
    network = MAKERS["nnx"](spec=lambda path, shape: ("model",) if path == "last.bias" else None)
    assert arrays(network.specs)["first.kernel"] == ALONG and arrays(network.specs)["last.bias"] == PartitionSpec(
        "model"
    )


def test_specs_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"spec= of 'first.kernel', which has shape \(4, 8\)"):
        MAKERS["functions"](spec=lambda path, shape: ("model", None, None))
    with pytest.raises(ValueError, match="or a tree like its value"):
        MAKERS["functions"](spec={"first": PartitionSpec()})


def test_networks_with_state_are_refused():
    with pytest.raises(ValueError, match=r"from_nnx: the module keeps BatchStat .*nnx_learner"):
        phx.networks.from_nnx(WithStatistics)
    with pytest.raises(ValueError, match="from_linen: the module keeps the collection 'batch_stats'"):
        phx.networks.from_linen(linen.BatchNorm(use_running_average=True), X[:1])


def test_weights_as_parameters_of_a_program():
    network = MAKERS["nnx"]()

    def model(x):
        phx.sample("y", dist.Normal(phx.network("net", network)(x), 1.0).to_event(1), obs=jnp.zeros((len(x), 2)))

    variables = phx.trace(phx.seed(model, 0))(X)
    assert list(variables) == ["net", "y"]
    assert arrays(variables["net"].value).keys() == arrays(network.specs).keys()
    assert arrays(variables["net"].parameter.spec)["first.kernel"] == ALONG
    with pytest.raises(TypeError, match="phx.network 'net': expected a network"):
        phx.network("net", OfNNX)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "name", [pytest.param("nnx", marks=pytest.mark.slow), pytest.param("linen", marks=pytest.mark.slow), "functions"]
)
def test_the_same_network_as_random_variables_and_as_a_member(name):
    network = MAKERS[name]()

    def model(x):
        phx.sample("y", dist.Normal(phx.random_network("net", network)(x), 1.0), obs=jnp.zeros((len(x), 2)))

    variables = phx.trace(phx.seed(model, 0))(X)
    names = [f"net.{path}" for path in arrays(network.init(KEY))]
    assert list(variables) == [*names, "y"]
    learner = phx.ensembles.learner(network, phx.ensembles.classification_loss, optax.sgd(0.1))
    state = learner.init(KEY)
    state, measured = learner.update(state, (X, np.zeros(len(X), np.int32)), KEY)
    assert measured["loss"].shape == () and learner.apply(state, X).shape == (16, 2)
    again = phx.ensembles.learner(network, loss=phx.ensembles.classification_loss, optimizer=optax.sgd(0.1))
    jax.tree.map(np.testing.assert_array_equal, learner.init(KEY), again.init(KEY))


def test_other_objects_than_networks_are_refused():
    with pytest.raises(TypeError, match=r"from_nnx\(lambda rngs: Linear\(..., rngs=rngs\)\); got a module"):
        phx.networks.from_nnx(nnx.Linear(4, 2, rngs=nnx.Rngs(0)))
    with pytest.raises(TypeError, match=r"from_equinox\(lambda key: Linear\(..., key=key\)\); got a module"):
        phx.networks.from_equinox(eqx.nn.Linear(4, 2, key=KEY))
    with pytest.raises(TypeError, match="random_network 'net': expected a network"):
        phx.random_network("net", of_functions)
    with pytest.raises(TypeError, match=r"learner\(network, loss, optimizer\)"):
        phx.ensembles.learner(MAKERS["functions"](), phx.ensembles.classification_loss)


class Noisy(nnx.Module):
    """Draws random numbers in a call, whatever the module's switch says."""

    def __init__(self, rngs, forced):
        self.linear, self.drop, self.rngs, self.forced = nnx.Linear(3, 2, rngs=rngs), nnx.Dropout(0.5), rngs, forced

    def __call__(self, x):
        y = self.linear(x)
        if self.forced:
            return self.drop(y, deterministic=False, rngs=self.rngs)
        return y + jax.random.normal(self.rngs.noise(), y.shape)


@pytest.mark.parametrize("forced", [True, False])
def test_a_network_that_draws_random_numbers_is_refused(forced):
    network = phx.networks.from_nnx(lambda rngs: Noisy(rngs, forced))
    weights = network.init(jax.random.key(0))
    with pytest.raises(ValueError, match="from_nnx: Noisy draws random numbers when it is called"):
        jax.jit(network.apply)(weights, jnp.ones(3))


def test_a_linen_network_that_draws_random_numbers_is_refused():
    class Dropping(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dropout(0.5, deterministic=False)(linen.Dense(2)(x))

    network = phx.networks.from_linen(Dropping(), jnp.ones(3))
    with pytest.raises(ValueError, match="from_linen: Dropping draws random numbers when it is called"):
        network.apply(network.init(jax.random.key(0)), jnp.ones(3))


class Sequence(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.Sequential(nnx.Linear(4, 3, rngs=rngs), nnx.Linear(3, 1, rngs=rngs))

    def __call__(self, x):
        return self.layers(x)[:, 0]


def test_a_fit_of_a_sequence_of_layers_is_saved_and_continues(tmp_path):
    network = phx.networks.from_nnx(lambda rngs: Sequence(rngs))

    def model(x, y):
        phx.sample("y", dist.Normal(phx.network("net", network)(x), 1.0), obs=y)

    options = {"num_steps": 3, "progress": False}
    fit = phx.fit(model, None, {"x": X, "y": X[:, 0]}, **options)
    read = phx.Fit.load(fit.save(tmp_path / "fit.npz"))
    jax.tree.map(np.testing.assert_array_equal, read.params, fit.params)
    again = phx.fit(model, None, {"x": X, "y": X[:, 0]}, init=read, **options)
    assert again.losses.elbo[0] > fit.losses.elbo[0]
