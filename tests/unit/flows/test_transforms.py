"""Transforms: their determinants are those of autodiff, their inverses take them back, and who may tell whom does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.distributions.transforms import ComposeTransform

import phalanx as phx
from phalanx.flows import (
    Coupling,
    Couplings,
    InverseAutoregressive,
    MaskedAutoregressive,
    MultiScale,
    Permutation,
    Unsqueeze,
)

# every example has shapes of its own, so each is compiled
FEW = settings(max_examples=25, deadline=None)
hidden_sizes = st.lists(st.integers(1, 9), min_size=0, max_size=2)
kinds = pytest.mark.parametrize("kind", [InverseAutoregressive, MaskedAutoregressive])


def shaken(weights, seed, by=0.4):
    """Weights that are not the ones it begins with."""
    leaves, tree = jax.tree.flatten(weights)
    rng = np.random.default_rng(seed)
    return tree.unflatten([w + by * rng.normal(size=w.shape).astype(np.float32) for w in leaves])


def check(transform, x):
    """Inverse and determinant, of a single event."""

    @jax.jit
    def found_of(x):
        y, many = transform(x), jnp.stack([x, 0.5 * x])
        jacobian = jax.jacfwd(lambda v: transform(v.reshape(x.shape)).ravel())(x.ravel())
        several = transform(many)
        log_dets = transform.log_abs_det_jacobian(many, several)
        another = jax.tree.map(lambda w: w, transform)  # that has gone neither way
        log_det, fresh = (each.log_abs_det_jacobian(x, y) for each in (transform, another))
        return y, transform.inv(y), jacobian, log_det, fresh, several, log_dets

    y, back, jacobian, found, fresh, several, log_dets = found_of(x)
    jacobian = np.asarray(jacobian)
    # rounding is multiplied by what the transform stretches things by
    stretch = np.linalg.cond(jacobian.astype(float))
    np.testing.assert_allclose(back, x, atol=1e-5 * (1 + np.abs(x).max()) * max(1.0, stretch) ** 0.5)
    rounded = 1e-4 + np.finfo(np.float32).eps * stretch  # what a determinant of rounded numbers is wrong by
    np.testing.assert_allclose(found, np.linalg.slogdet(jacobian.astype(float))[1], rtol=1e-4, atol=rounded)
    np.testing.assert_allclose(fresh, found, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(several[0], y, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(log_dets[0], found, rtol=1e-4, atol=1e-5)
    assert log_dets.shape == (2,)
    return jacobian


def autoregression(kind, size, hidden, seed):
    rng = np.random.default_rng(seed)
    order = tuple(rng.permutation(size).tolist())
    transform = kind(shaken(kind.init(jax.random.key(seed), size, hidden), seed), order)
    jacobian = check(transform, rng.normal(size=size).astype(np.float32))
    ordered = jacobian[np.ix_(order, order)]
    np.testing.assert_array_equal(np.triu(ordered, 1), 0.0)  # what comes before is told nothing
    assert (ordered[np.tril_indices(size, -1)] != 0).all()  # what comes after is, by its linear part at least


def coupling(size, hidden, seed, second):
    rng = np.random.default_rng(seed)
    stays = phx.flows.halves(size, second)
    transform = Coupling(shaken(Coupling.init(jax.random.key(seed), size, hidden), seed), stays)
    jacobian = check(transform, rng.normal(size=size).astype(np.float32))
    np.testing.assert_array_equal(jacobian[stays][:, stays], np.eye(stays.sum()))
    assert (jacobian[~stays][:, stays] != 0).all()
    np.testing.assert_array_equal(jacobian[~stays][:, ~stays], np.diag(np.diag(jacobian)[~stays]))


@pytest.mark.slow
def test_one_autoregression():
    autoregression(MaskedAutoregressive, 4, (6, 5), 1)


@kinds
@pytest.mark.slow
@FEW
@given(st.integers(1, 7), hidden_sizes, st.integers(0, 99))
def test_any_autoregression(kind, size, hidden, seed):
    autoregression(kind, size, hidden, seed)


@pytest.mark.slow
@kinds
def test_a_context_is_told_to_all_and_changes_no_order(kind):
    size, context = 3, 2
    weights = shaken(kind.init(jax.random.key(0), size, (5,), context), 0)
    x, known = np.ones(size, np.float32), np.array([0.5, -1.0], np.float32)
    jacobian = check_with(lambda c: kind(weights, context=c), x, known)
    np.testing.assert_array_equal(np.triu(jacobian, 1), 0.0)
    by_context = np.asarray(jax.jacfwd(lambda c: kind(weights, context=c)(x))(known))
    assert (by_context != 0).all()
    bare = kind.init(jax.random.key(0), size, (), context)
    np.testing.assert_array_equal(kind(bare, context=known)(x), x)  # it begins as the identity


def check_with(transform_of, x, known):
    """As `check`, of events that each have a context of their own."""
    transform = transform_of(known)
    jacobian = np.asarray(jax.jacfwd(transform)(x))
    assert transform.log_abs_det_jacobian(x, transform(x)) == pytest.approx(np.linalg.slogdet(jacobian)[1], abs=1e-4)
    several = transform_of(jnp.stack([known, -known]))
    both = several(jnp.stack([x, x]))
    np.testing.assert_allclose(both[0], transform(x), rtol=1e-5)
    np.testing.assert_allclose(several.inv(both), np.stack([x, x]), rtol=1e-4, atol=1e-5)
    return jacobian


def test_contexts_and_weights_go_together():
    with_one = InverseAutoregressive.init(jax.random.key(0), 2, (3,), 1)
    without = InverseAutoregressive.init(jax.random.key(0), 2, (3,))
    for weights, context in ((with_one, None), (without, jnp.ones(1))):
        with pytest.raises(ValueError, match="need a context of n numbers, and others take none"):
            InverseAutoregressive(weights, context=context)


def test_one_coupling():
    coupling(5, (4,), 2, True)


@pytest.mark.slow
@FEW
@given(st.integers(2, 7), hidden_sizes, st.integers(0, 99), st.booleans())
def test_any_coupling(size, hidden, seed, second):
    coupling(size, hidden, seed, second)


@pytest.mark.slow
@FEW
@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 99))
def test_composed_with_permutations(size, depth, seed):
    rng, stays = np.random.default_rng(seed), phx.flows.halves(size)
    layers = []
    for number in range(depth):
        layers += [
            Coupling(shaken(Coupling.init(jax.random.key(number), size, (5,)), seed + number, by=0.2), stays),
            Permutation(jnp.asarray(rng.permutation(size))),
        ]
    check(ComposeTransform(layers), rng.normal(size=size).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [InverseAutoregressive, MaskedAutoregressive, Coupling])
def test_it_begins_as_the_identity(kind):
    weights = kind.init(jax.random.key(0), 3, (4,))
    layer = Coupling(weights, phx.flows.halves(3)) if kind is Coupling else kind(weights)
    np.testing.assert_allclose(jax.jit(layer.__call__)(jnp.arange(1.0, 4.0)), jnp.arange(1.0, 4.0))


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 1))
def test_any_coordinate_is_told_by_any_other(sizes):
    size = sum(sizes)
    layers = phx.flows.digits(sizes)
    told = np.zeros((size, size), bool)
    for stays in layers:
        assert stays.any() and not stays.all()
        told |= np.outer(~stays, stays)
    assert (told | np.eye(size, dtype=bool)).all()
    assert layers[-1][0] and not layers[-1][-1]  # in the end, what comes first tells what comes last


def test_vectors_are_separated_before_they_are_halved():
    layers = phx.flows.digits([1, 4], within=0)
    np.testing.assert_array_equal(layers, [[0, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
    assert phx.flows.digits([1]).shape == (0, 1)


@pytest.mark.slow
def test_couplings_in_a_loop_are_couplings_one_by_one():
    stays = phx.flows.digits([2, 3])
    weights = shaken(Couplings.init(jax.random.key(0), stays, (4,)), 3, by=0.2)
    each = [Coupling(jax.tree.map(lambda w, i=i: w[i], weights), flags) for i, flags in enumerate(stays)]
    loop, chain = Couplings(weights, stays), ComposeTransform(each)
    x = np.random.default_rng(0).normal(size=5).astype(np.float32)

    @jax.jit
    def found_of(x):
        y = loop(x)
        return (
            y,
            chain(x),
            loop.log_abs_det_jacobian(x, y),
            chain.log_abs_det_jacobian(x, y),
            *loop.inverse_and_log_det(y),
        )

    y, expected, log_det, expected_log_det, back, again = found_of(x)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose([log_det, again], [expected_log_det] * 2, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(back, x, rtol=1e-4, atol=1e-4)


def test_pixels_become_channels_and_go_back():
    image = jnp.arange(2 * 4 * 6 * 3.0).reshape(2, 4, 6, 3)
    squeezed = jnp.asarray(Unsqueeze().inv(image))
    assert squeezed.shape == (2, 2, 3, 12) == Unsqueeze().inverse_shape(image.shape)
    np.testing.assert_array_equal(Unsqueeze()(squeezed), image)
    # a pixel of the squeezed image has those of a square of two by two
    np.testing.assert_array_equal(np.sort(squeezed[0, 1, 2]), np.sort(image[0, 2:4, 4:6].ravel()))
    with pytest.raises(ValueError, match=r"height and width must be even; got an image of shape \(3, 4, 1\)\."):
        Unsqueeze().inv(jnp.zeros((3, 4, 1)))
    with pytest.raises(ValueError, match=r"channels must be a multiple of 4; got an image of shape \(4, 4, 3\)\."):
        Unsqueeze()(jnp.zeros((4, 4, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_scales(count):
    shape = (4, 8, 1)
    scales = []
    for number, part in enumerate(MultiScale.shapes(shape, count)):
        size = int(np.prod(part))
        weights = [shaken(Coupling.init(jax.random.key(i), size, (3,)), i, by=0.1) for i in (number, number + 9)]
        scales.append(
            ComposeTransform(
                [Coupling(weights[0], phx.flows.channels(part)), Coupling(weights[1], phx.flows.checkerboard(part))]
            )
        )
    flow = MultiScale(shape, scales)
    assert flow.forward_shape((5, 32)) == (5, *shape) and flow.inverse_shape((5, *shape)) == (5, 32)
    check(flow, np.random.default_rng(count).normal(size=32).astype(np.float32))
    images = dist.TransformedDistribution(dist.Normal(0.0, 1.0).expand([32]).to_event(1), flow)
    assert images.event_shape == shape
    assert jnp.isfinite(images.log_prob(images.sample(jax.random.key(0), (3,)))).all()


@pytest.mark.slow
def test_a_network_of_ones_own():
    def network(weights, x):
        return weights * x.sum((-3, -2, -1), keepdims=True) * jnp.ones_like(x), 0.1 * x.mean() * jnp.ones_like(x)

    layer = Coupling(jnp.float32(0.3), phx.flows.checkerboard((2, 2, 1)), network)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 2, 1)), jnp.float32)
    y = layer(x)
    jacobian = jax.jacobian(lambda v: layer(v.reshape(x.shape)).ravel())(x.ravel())
    np.testing.assert_allclose(layer.inv(y), x, atol=1e-6)
    np.testing.assert_allclose(layer.log_abs_det_jacobian(x, y), jnp.linalg.slogdet(jacobian)[1], atol=1e-5)


def transforms(size=5):
    kinds = InverseAutoregressive, MaskedAutoregressive
    iaf, maf = (kind(shaken(kind.init(jax.random.key(0), size), 0)) for kind in kinds)
    return [iaf, maf, Coupling(shaken(Coupling.init(jax.random.key(0), size), 0), phx.flows.halves(size))]


def images_by_scale(network):
    """Two scales, of two couplings and of one."""
    fine, coarse = MultiScale.shapes((4, 4, 1), 2)
    halves = [Coupling(jnp.float32(0.1), phx.flows.channels(fine, second), network) for second in (False, True)]
    last = Coupling(jnp.float32(0.1), phx.flows.channels(coarse), network)
    return MultiScale((4, 4, 1), [ComposeTransform(halves), last])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["couplings", "scales"])
def test_a_density_goes_through_each_network_once(kind):
    """Of a value, of a draw on the way, and for the gradient: what a network is asked is counted."""
    asked = []

    def network(weights, x):
        asked.append(x.shape)
        return weights * jnp.sum(x, -1, keepdims=True) * jnp.ones_like(x), jnp.tanh(weights * x[..., ::-1])

    if kind == "scales":
        layers, size, count = [images_by_scale(network)], 16, 3
    else:
        size, count = 4, 2
        layers = [Coupling(jnp.float32(0.1), phx.flows.halves(size, second), network) for second in (False, True)]
    flow = dist.TransformedDistribution(dist.Normal(0.0, 1.0).expand([size]).to_event(1), layers)
    drawn, between = flow.sample_with_intermediates(jax.random.key(0))
    on_the_way = flow.log_prob(drawn, between)
    assert len(asked) == count
    value = jnp.asarray(drawn)
    assert float(flow.log_prob(value)) == pytest.approx(float(on_the_way), rel=1e-5)
    assert len(asked) == 2 * count
    jax.jit(jax.grad(lambda v: flow.log_prob(v))).lower(value)
    assert len(asked) == 3 * count


@pytest.mark.parametrize("kind", [pytest.param(MaskedAutoregressive, marks=pytest.mark.slow), Couplings])
def test_a_density_multiplies_by_each_matrix_once(kind):
    stays = phx.flows.digits([2, 2])
    weights = Couplings.init(jax.random.key(0), stays, (3,))
    layer = Couplings(weights, stays) if kind is Couplings else kind(kind.init(jax.random.key(0), 4, (3,)))
    flow = dist.TransformedDistribution(dist.Normal(0.0, 1.0).expand([4]).to_event(1), [layer])
    program = str(jax.make_jaxpr(flow.log_prob)(jnp.ones(4)))
    assert program.count("dot_general[") == 3  # two layers, and the linear part beside them


def test_an_array_that_can_change_is_not_remembered():
    layer, x = transforms()[2], np.ones(5, np.float32)
    y, first = layer(x), layer.log_abs_det_jacobian(x, layer(x))
    x[:] = 3.0
    assert float(layer.log_abs_det_jacobian(x, layer(x))) != pytest.approx(float(first))
    np.testing.assert_array_equal(layer.log_abs_det_jacobian(np.ones(5, np.float32), y), first)


@pytest.mark.parametrize("which", [*(pytest.param(i, marks=pytest.mark.slow) for i in (0, 1)), 2])
def test_extreme_inputs_give_no_nan(which):
    transform = transforms()[which]

    @jax.jit
    def found_of(x):
        return [
            (f(x), *jax.value_and_grad(lambda v, f=f: f.log_abs_det_jacobian(v, f(v)))(x))
            for f in (transform, transform.inv)
        ]

    for far in (1e6, 1e20, 1e30):
        for x in (jnp.full(5, far), jnp.array([far, -far, 1.0, far, -far])):
            for y, log_det, gradient in found_of(x):
                assert not jnp.isnan(y).any() and jnp.isfinite(log_det) and jnp.isfinite(gradient).all()


@pytest.mark.slow
def test_weights_are_leaves_and_parameters():
    def flow_guide():
        weights = phx.param("weights", lambda key: Coupling.init(key, 2, hidden=(4,)))
        base = dist.Normal(0.0, 1.0).expand([2]).to_event(1)
        phx.sample("x", dist.TransformedDistribution(base, Coupling(weights, phx.flows.halves(2))))

    def model():
        phx.sample("x", dist.MultivariateNormal(jnp.zeros(2), jnp.array([[1.0, 0.6], [0.6, 1.0]])))

    fit = phx.fit(model, flow_guide, num_steps=300, until=False, optimizer=0.02, progress=False)
    assert np.corrcoef(fit.sample(seed=0, n=4000)["x"].T)[0, 1] == pytest.approx(0.6, abs=0.1)
    coupling = transforms()[2]
    again = jax.jit(lambda t: t)(jax.tree.map(jnp.asarray, coupling).weights)
    np.testing.assert_array_equal(again["linear"], coupling.weights["linear"])


def test_wrong_options_are_refused():
    weights = Coupling.init(jax.random.key(0), 2)
    for stays in (True, [True, True], [False, False]):
        with pytest.raises(ValueError, match="Coupling: stays must be a mask of an event's elements"):
            Coupling(weights, stays)
    with pytest.raises(ValueError, match=r"order: expected each of the 2 coordinates once; got \(0, 0\)\."):
        MaskedAutoregressive(InverseAutoregressive.init(jax.random.key(0), 2), (0, 0))
    with pytest.raises(ValueError, match=r"multiples of 4, to be halved 2 times; got an image of shape \(4, 6, 1\)\."):
        MultiScale((4, 6, 1), [Unsqueeze(), Unsqueeze()])


@pytest.mark.parametrize("kind", [pytest.param(InverseAutoregressive, marks=pytest.mark.slow), MaskedAutoregressive])
def test_tracers_of_a_compiled_function_stay_there(kind):
    flow, x = kind(kind.init(jax.random.key(0), 3)), jnp.arange(3.0)
    inside = jax.jit(lambda: flow.log_abs_det_jacobian(x, x))()  # x is closed over: the same array outside
    np.testing.assert_array_equal(flow.log_abs_det_jacobian(x, x), inside)
