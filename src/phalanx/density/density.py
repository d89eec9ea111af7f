"""Density of a target on one device: its share, the whole, gradients, likelihood, and initial positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from phalanx.density.imputation import of_given_entries
from phalanx.density.minibatch import MinibatchEstimate
from phalanx.distributions.bijections import EXPONENTIALS, radius_at
from phalanx.distributions.row_sums import total_of
from phalanx.errors.model_errors import gradient_errors
from phalanx.inputs.arguments import Layout
from phalanx.jaxprs.group_sums import with_group_sums
from phalanx.language.observations import marked_term_of
from phalanx.language.tracing import Program
from phalanx.mesh.position import ByVariable, Shared, add_shares
from phalanx.mesh.total import Total
from phalanx.mesh.virtual_mesh import traced_anyhow
from phalanx.programs.centring import Residuals, log_jacobians, residuals_of
from phalanx.programs.shares import Shares, Term
from phalanx.programs.unconstrained import Evaluation, at_values, run_unconstrained, to_unconstrained
from phalanx.programs.validity import doubts

INITIAL_RADIUS = 2.0
"""Initial positions are uniform on (-2, 2) on the unconstrained scale, as in Stan."""


@dataclass(frozen=True)
class Density:
    """A target on one device with its data: the density that kernels use. Use it inside `shard_map`.

    Every method returns the result for the whole log density, on every device; only `share` is one device's part.

    Attributes:
        program, layout: the model, and the structure of its data.
        arrays: the data on this device.
        shares: the terms and variables that are local.
        lanes: number of chains that this device advances together.
        estimate: rule for drawing minibatches, for kernels that use them.
        temperature: power of the likelihood; None for one.
    """

    program: Program
    layout: Layout
    arrays: Sequence[Array]
    shares: Shares
    lanes: int = 1
    estimate: MinibatchEstimate | None = None
    temperature: Array | None = None

    def with_own(self, own: Mapping[int, Array]) -> Density:
        """Return the density of other data: `own` replaces the arrays with these numbers."""
        if not own:
            return self
        return replace(self, arrays=tuple(own.get(number, array) for number, array in enumerate(self.arrays)))

    def of_rows(self, rows: Array) -> Density:
        """Return the density estimated from these rows of this device, unbiased if they are drawn at random."""
        assert self.estimate is not None
        minibatch, weights = self.estimate
        return replace(self, arrays=minibatch.take(self.arrays, rows), shares=replace(self.shares, weights=weights))

    def share(self, position: ByVariable) -> Total:
        """Return this device's share of the log density: differentiable code without a collective of Phalanx."""
        weighted = self._weighted(position)
        if self.temperature is not None:
            weighted |= {term: weighted[term].times(self.temperature) for term in self.shares.of_likelihood}
        return _sum_of(weighted.values())

    def likelihood(self, position: ByVariable) -> Total:
        """Return the log likelihood, whatever the temperature."""
        weighted = self._weighted(position)
        return self._add(_sum_of([weighted[term] for term in self.shares.of_likelihood]))

    def total(self, position: ByVariable) -> Total:
        """Return the log density."""
        return self._add(with_group_sums(self.share)(position))

    def value_and_grad(self, position: ByVariable) -> tuple[Total, ByVariable]:
        """Return the log density and its gradient; one sum over devices for both."""

        def share(position: ByVariable) -> tuple[Array, Array]:
            total = self.share(position)
            return total.fine, total.coarse  # the coarse part has no derivative

        with_gradient = traced_anyhow(with_group_sums(jax.value_and_grad(share, has_aux=True)))
        with gradient_errors():
            (fine, coarse), gradient = with_gradient(position)
        shardings = {latent.name: latent.sharding for latent in self.shares.latents}
        return add_shares(Total(coarse, fine), gradient, shardings, self.shares.axes)

    @property
    def log_density(self) -> Callable[[ByVariable], Array]:
        """The log density, in one float, as a function that any code may differentiate."""

        # The arrays are an argument: a custom_vjp must not close over values of the surrounding trace.
        def density(given) -> Density:
            return replace(self, arrays=given[0], temperature=given[1])

        @jax.custom_vjp
        def of(position, given):
            return density(given).total(position).value

        def forward(position, given):
            total, gradient = density(given).value_and_grad(position)
            return total.value, gradient

        def backward(gradient, cotangent):
            return jax.tree.map(lambda g: cotangent * g, gradient), None

        of.defvjp(forward, backward)
        return lambda position: of(position, (self.arrays, self.temperature))

    def constrain(self, position: ByVariable) -> dict[str, Array]:
        """Return the values of the latent and deterministic variables at a position."""
        return self._run(position).values()

    def residuals(self, position: ByVariable) -> dict[str, Residuals]:
        """Return the residuals of the partially centred variables at a position."""
        return residuals_of(self._run(position).variables)

    def centring_jacobian(self, position: ByVariable) -> Array:
        """Return the part of the log density that is due to partially centred positions instead of values."""
        terms, totals = self.shares.terms, log_jacobians(self._run(position).variables)
        shares = [
            self.shares.weigh((name, "jacobian"), total_of(terms[name, "jacobian"].keep_rows(term)))
            for name, term in totals.items()
        ]
        return self._add(_sum_of(shares)).value

    def observations(self, position: ByVariable) -> dict[str, Array]:
        """Return the log density of each observation at a position, by observed variable.

        Missing entries that are imputed, and those that a mask leaves out, have infinity instead.
        """
        given = of_given_entries(self._run(position).observed, self.layout.join(self.arrays))
        return {name: marked_term_of(variable) for name, variable in given.items()}

    def unconstrain(self, values: Mapping[str, Array]) -> ByVariable:
        """Return the position at which the latent variables have these values."""
        return to_unconstrained(self.program, values, self.layout.join(self.arrays))

    def at_values(
        self, position: ByVariable, values: Mapping[str, Array], wanted: Mapping[str, Array]
    ) -> tuple[ByVariable, dict[str, Array]]:
        """Return `position` with the `wanted` variables at these values, and which values no position can give."""
        found, misfits = at_values(self.program, position, values, wanted, self.layout.join(self.arrays))
        return found, jax.tree.map(lambda wrong: self._add(wrong.astype(jnp.int32)) > 0, misfits)

    def with_radii(self, position: ByVariable, key: Array) -> ByVariable:
        """Return a position of the same values, with the radii of points that determine angles drawn at random."""
        angles = [latent.name for latent in self.shares.latents if latent.is_of_points]
        if not angles:
            return position
        keys = jax.random.split(key, -(-EXPONENTIALS // 2))
        uniform = [self.shares.layout.uniform(key, 0.0, 1.0) for key in keys]
        numbers = {name: jnp.concatenate([part[name] for part in uniform], -1)[..., :EXPONENTIALS] for name in angles}
        radii = {name: radius_at(-jnp.sum(jnp.log1p(-part), -1, keepdims=True)) for name, part in numbers.items()}
        return {**position, **{name: radius * position[name] for name, radius in radii.items()}}

    def initial_position(self, key: Array, radius: Array | float = INITIAL_RADIUS) -> ByVariable:
        """Return a random position near zero: equal on all devices for global variables, different for sharded ones."""
        start = getattr(self.program, "start", None)
        if start is not None:  # a log density given as a function may be improper elsewhere
            return self.unconstrain(start)
        uniform, zeros = self.shares.layout.uniform(key, -1.0, 1.0), self.shares.layout.zeros()
        return jax.tree.map(lambda x, zero: radius * x + zero, uniform, zeros)

    def contributions(self, position: ByVariable) -> dict[str, Array]:
        """Return each variable's contribution to the log density, which shows the cause if the sum is not finite."""
        totals: dict[str, Total] = {}
        for (name, part), total in self._totals(position).items():
            share = self.shares.weigh((name, part), total)
            totals[name] = totals[name] + share if name in totals else share
        return {name: self._add(total).value for name, total in totals.items()}

    def invalid(self) -> dict[tuple[str, str], Array]:
        """Return the number of observed values and parameters that are invalid, by variable and parameter."""
        zero = self.initial_position(jax.random.key(0), 0.0)
        found = doubts(self._run(zero), self._run(self.initial_position(jax.random.key(1))))
        return {key: self._add(jnp.sum(doubt.bad)) for key, doubt in found.items()}

    def _add(self, share: Shared) -> Shared:
        return jax.lax.psum(share, self.shares.axes) if self.shares.axes else share

    def _weighted(self, position: ByVariable) -> dict[Term, Total]:
        return {term: self.shares.weigh(term, total) for term, total in self._totals(position).items()}

    def _totals(self, position: ByVariable) -> dict[Term, Total]:
        """Return the terms summed over the rows of this device, without padded rows."""
        if (padded := self.shares.padded) is not None:
            position = padded.filled(position)
        totals = self._run(position).totals(self.shares.terms, self.lanes)
        totals |= self.shares.masked_totals(position, self.arrays)
        if padded is None:
            return totals
        last, arrays = padded.one_row(position, self.arrays)
        return padded.without_padding(totals, replace(self, arrays=arrays)._run(last).terms())

    def _run(self, position: ByVariable) -> Evaluation:
        return run_unconstrained(self.program, position, self.layout.join(self.arrays))


def _sum_of(totals: Iterable[Total]) -> Total:
    first, *others = totals
    return sum(others, start=first)
