"""Density of a target on one device: its value, gradient, likelihood, and initial positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from phalanx.density.derivatives import DensityFunctions, differentiable
from phalanx.density.given_entries import of_given_entries
from phalanx.density.minibatch import Minibatch
from phalanx.distributions.bijections import EXPONENTIALS, radius_at
from phalanx.distributions.row_sums import over, times, total_of
from phalanx.errors.model_errors import gradient_errors
from phalanx.inputs.arguments import ArgumentLayout
from phalanx.jaxprs.group_sums import with_group_sums
from phalanx.language.observations import marked_term_of
from phalanx.language.tracing import Program
from phalanx.mesh.position import ByVariable, inner_products
from phalanx.mesh.row_sharding import GLOBAL, RowSharding
from phalanx.mesh.specs import PyTree
from phalanx.mesh.total import Total
from phalanx.mesh.virtual_mesh import retry_without_mesh
from phalanx.placements import Message
from phalanx.programs.centring import Residuals, first_centring, log_jacobians, residuals_of
from phalanx.programs.sites import Sites, Term
from phalanx.programs.unconstrained import Evaluation, at_values, run_unconstrained, to_unconstrained
from phalanx.programs.validity import value_checks_of_both

INITIAL_RADIUS = 2.0
"""Initial positions are uniform on (-2, 2) on the unconstrained scale, as in Stan."""


@dataclass(frozen=True)
class Density:
    """A target on one device with its data: the density that kernels use. Use it inside `shard_map`.

    Every method returns the result for the whole log density, on every device.

    Attributes:
        program, layout: the model, and the structure of its data.
        arrays: the data on this device.
        sites: the variables and terms, with the rows of this device.
        lanes: number of chains that this device advances together.
        minibatch: rule for drawing minibatches, for kernels that use them.
        temperature: power of the likelihood; None for one.
        messages: gets the messages of what is traced; None if they are not recorded.
    """

    program: Program
    layout: ArgumentLayout
    arrays: Sequence[Array]
    sites: Sites
    lanes: int = 1
    minibatch: Minibatch | None = None
    temperature: Array | None = None
    messages: list[Message] | None = field(default=None, compare=False, repr=False)

    def with_lane_data(self, lane_data: Mapping[int, Array]) -> Density:
        """Return the density of other data: `own` replaces the arrays with these numbers."""
        if not lane_data:
            return self
        return replace(self, arrays=tuple(lane_data.get(number, array) for number, array in enumerate(self.arrays)))

    def of_rows(self, rows: Array) -> Density:
        """Return the density estimated from these rows of this device, unbiased if they are drawn at random."""
        minibatch = self.minibatch
        assert minibatch is not None
        sites = replace(self.sites, arrays=tuple(minibatch.shardings(self.sites.arrays)), weights=minibatch.weights)
        return replace(self, arrays=minibatch.take(self.arrays, rows), sites=sites)

    def likelihood(self, position: ByVariable) -> Total:
        """Return the log likelihood, whatever the temperature."""

        def of_all_rows(whole: Density, position: ByVariable) -> Total:
            terms = whole._weighted(position)
            return _sum_of([terms[term] for term in whole.sites.of_likelihood])

        return self._on_rows(of_all_rows, GLOBAL, position)

    def total(self, position: ByVariable) -> Total:
        """Return the log density."""
        return self._on_rows(Density._total, GLOBAL, position)

    def value_and_grad(self, position: ByVariable) -> tuple[Total, ByVariable]:
        """Return the log density and its gradient; one sum over devices for both."""

        def of_all_rows(whole: Density, position: ByVariable) -> tuple[Total, ByVariable]:
            def parts(position: ByVariable) -> tuple[Array, Array]:
                total = whole._total(position)
                return total.fine, total.coarse  # the coarse part has no derivative

            (fine, coarse), gradient = jax.value_and_grad(parts, has_aux=True)(position)
            return Total(coarse, fine), gradient

        with gradient_errors():
            total, gradient = self._on_rows(of_all_rows, (GLOBAL, self.sites.positions), position)
        return total, self._without_padding(gradient)

    @property
    def log_density(self) -> Callable[[ByVariable], Array]:
        """The log density, in one float, as a function that any code may differentiate."""

        def of(data: Any) -> Density:
            arrays, temperature = data
            return replace(self, arrays=arrays, temperature=temperature)

        def value(data: Any, position: ByVariable) -> Array:
            return of(data).total(position).value

        def value_and_grad(data: Any, position: ByVariable) -> tuple[Array, ByVariable]:
            total, gradient = of(data).value_and_grad(position)
            return total.value, gradient

        def hessian_product(data: Any, position: ByVariable, direction: ByVariable) -> ByVariable:
            return of(data).hessian_product(position, direction)

        def inner_product(a: ByVariable, b: ByVariable) -> Array:
            pair = self.sites.layout.vector(a), self.sites.layout.vector(b)
            return inner_products(self.sites.layout.groups, pair)[0]

        data = list(self.arrays), self.temperature  # an argument: rules must not close over values of the outer trace
        if not self.sites.is_divided:
            return differentiable(DensityFunctions(value, value_and_grad), data)
        return differentiable(DensityFunctions(value, value_and_grad, hessian_product, inner_product), data)

    def hessian_product(self, position: ByVariable, direction: ByVariable) -> ByVariable:
        """Return the product of the log density's Hessian at a position with a direction."""

        def of_all_rows(whole: Density, position: ByVariable, direction: ByVariable) -> ByVariable:
            gradient = jax.grad(lambda position: whole._total(position).fine)
            try:
                return jax.jvp(gradient, (position,), (direction,))[1]
            except TypeError:  # a function with a reverse derivative of its own has no forward one
                return jax.vjp(gradient, position)[1](direction)[0]

        return self._without_padding(self._on_rows(of_all_rows, self.sites.positions, position, direction))

    def constrain(self, position: ByVariable) -> dict[str, Array]:
        """Return the values of the latent and deterministic variables at a position."""
        return self._on_rows(lambda whole, position: whole._run(position).values(), self.sites.values, position)

    def residuals(self, position: ByVariable) -> dict[str, Residuals]:
        """Return the residuals of the partially centred variables at a position."""
        shardings = {name: self.sites.positions[name] for name in first_centring(self.program)}
        return self._on_rows(lambda whole, position: residuals_of(whole._run(position).variables), shardings, position)

    def centring_jacobian(self, position: ByVariable) -> Array:
        """Return the part of the log density that is due to partially centred positions instead of values."""

        def of_all_rows(whole: Density, position: ByVariable) -> Total:
            jacobians = log_jacobians(whole._run(position).variables)
            return _sum_of([whole._weigh(name, total_of(term)) for name, term in jacobians.items()])

        return self._on_rows(of_all_rows, GLOBAL, position).value

    def observations(self, position: ByVariable) -> dict[str, Array]:
        """Return the log density of each observation at a position, by observed variable.

        Missing entries that are imputed, and those that a mask leaves out, have infinity instead.
        """

        def of_all_rows(whole: Density, position: ByVariable) -> dict[str, Array]:
            marked_terms = of_given_entries(whole._run(position).observed, whole.layout.join(whole.arrays))
            return {name: marked_term_of(variable) for name, variable in marked_terms.items()}

        return self._on_rows(of_all_rows, self.sites.observations, position)

    def unconstrain(self, values: Mapping[str, Array]) -> ByVariable:
        """Return the position at which the latent variables have these values."""

        def of_all_rows(whole: Density, values: Mapping[str, Array]) -> ByVariable:
            return to_unconstrained(whole.program, values, whole.layout.join(whole.arrays))

        return self._without_padding(self._on_rows(of_all_rows, self.sites.positions, dict(values)))

    def at_values(
        self, position: ByVariable, values: Mapping[str, Array], is_wanted: Mapping[str, Array]
    ) -> tuple[ByVariable, dict[str, Array]]:
        """Return `position` with the wanted variables at these values, and which values no position can give."""

        def of_all_rows(whole: Density, *inputs: Mapping[str, Array]) -> tuple[ByVariable, dict[str, Array]]:
            position, values, is_wanted = inputs
            return at_values(whole.program, position, values, is_wanted, whole.layout.join(whole.arrays))

        outputs = self.sites.positions, GLOBAL
        results, misfits = self._on_rows(of_all_rows, outputs, position, dict(values), dict(is_wanted))
        return self._without_padding(results), misfits

    def with_radii(self, position: ByVariable, key: Array) -> ByVariable:
        """Return a position of the same values, with the radii of points that determine angles drawn at random."""
        angles = [latent.name for latent in self.sites.latents if latent.is_of_points]
        if not angles:
            return position
        keys = jax.random.split(key, -(-EXPONENTIALS // 2))
        uniform = [self.sites.layout.uniform(key, 0.0, 1.0) for key in keys]
        numbers = {name: jnp.concatenate([part[name] for part in uniform], -1)[..., :EXPONENTIALS] for name in angles}
        radii = {name: radius_at(-jnp.sum(jnp.log1p(-part), -1, keepdims=True)) for name, part in numbers.items()}
        return {**position, **{name: radius * position[name] for name, radius in radii.items()}}

    def initial_position(self, key: Array, radius: Array | float = INITIAL_RADIUS) -> ByVariable:
        """Return a random position near zero: equal on all devices for global variables, different for sharded ones."""
        start = getattr(self.program, "start", None)
        if start is not None:  # a log density given as a function may be improper elsewhere
            return self.unconstrain(start)
        uniform = self.sites.layout.uniform(key, -1.0, 1.0)
        zeros = self.sites.layout.zeros()
        return jax.tree.map(lambda x, zero: radius * x + zero, uniform, zeros)

    def contributions(self, position: ByVariable) -> dict[str, Array]:
        """Return each variable's contribution to the log density, which shows the cause if the sum is not finite."""

        def of_all_rows(whole: Density, position: ByVariable) -> dict[str, Total]:
            totals: dict[str, Total] = {}
            for (name, _), total in whole._weighted(position).items():
                totals[name] = totals[name] + total if name in totals else total
            return totals

        return {name: total.value for name, total in self._on_rows(of_all_rows, GLOBAL, position).items()}

    def invalid(self) -> dict[tuple[str, str], Array]:
        """Return the number of observed values and parameters that are invalid, by variable and parameter."""

        def of_all_rows(whole: Density) -> dict[tuple[str, str], Array]:
            zero = whole.initial_position(jax.random.key(0), 0.0)
            checks = value_checks_of_both(whole._run(zero), whole._run(whole.initial_position(jax.random.key(1))))
            return {key: jnp.sum(check.bad) for key, check in checks.items()}

        return self._on_rows(of_all_rows, GLOBAL)

    # -- whole arrays and one device's rows ----------------------------------------------------------------------------

    def _on_rows(self, f: Callable[..., Any], outputs: PyTree, *operands: Mapping[str, Array]) -> Any:
        """Return `f(density, *operands)`, where `density` has all rows, evaluated on the rows of this device.

        Args:
            f: a function of a density on one device, and of arrays by variable.
            outputs: sharding of the results.
            *operands: positions or values on this device.
        """
        if not self.sites.is_divided:
            return retry_without_mesh(with_group_sums(lambda *operands: f(self, *operands)))(*operands)
        temperature = () if self.temperature is None else (self.temperature,)

        def of_all_rows(arrays: Sequence[Array], temperature: Sequence[Array], *operands: Mapping[str, Array]) -> Any:
            of_whole = replace(
                self, arrays=arrays, temperature=next(iter(temperature), None), sites=self.sites.on_one_device
            )
            return f(of_whole, *operands)

        rows = self.sites.rows
        shardings = [{name: self._sharding(name, x) for name, x in each.items()} for each in operands]
        inputs = list(self.sites.arrays), GLOBAL, *shardings
        padded_inputs = [rows.with_last_row(*pair, self.messages) for pair in zip(operands, shardings, strict=True)]
        evaluate = with_group_sums(rows.function(of_all_rows, inputs, outputs, self.messages))
        return evaluate(list(self.arrays), temperature, *padded_inputs)

    def _sharding(self, name: str, values: Array) -> RowSharding:
        return self.sites.values.get(name, GLOBAL) if jnp.ndim(values) else GLOBAL

    def _without_padding(self, position: ByVariable) -> ByVariable:
        """Return a position with zeros in padded rows, which do not move."""
        if not self.sites.is_divided:
            return position
        return {name: self.sites.positions[name].keep_rows(x) for name, x in position.items()}

    def _total(self, position: ByVariable) -> Total:
        terms = self._weighted(position)
        if self.temperature is not None:
            terms |= {term: times(terms[term], self.temperature) for term in self.sites.of_likelihood}
        return _sum_of(terms.values())

    def _weighted(self, position: ByVariable) -> dict[Term, Total]:
        totals = self._run(position).totals(self.sites.terms, self.lanes)
        return {term: self._weigh(term[0], total) for term, total in totals.items()}

    def _weigh(self, name: str, total: Total) -> Total:
        weight = self.sites.weights.get(name, 1.0)
        return total if weight == 1.0 else over(total, 1.0 / weight)

    def _run(self, position: ByVariable) -> Evaluation:
        return run_unconstrained(self.program, position, self.layout.join(self.arrays))


def _sum_of(totals: Iterable[Total]) -> Total:
    first, *others = totals
    return sum(others, start=first)
