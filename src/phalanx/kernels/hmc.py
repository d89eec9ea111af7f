"""Hamiltonian Monte Carlo with trajectories of fixed length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import ArrayLike

from phalanx.adaptation.metric import KINDS, Metric
from phalanx.adaptation.step_size import StepSize
from phalanx.kernels.integrators.trajectory import Hamiltonian, draw_by_trajectory
from phalanx.kernels.metric.given_metric import GivenMetric, given_metric
from phalanx.kernels.protocol.kernel import Info, Kernel, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.kernels.protocol.options import check_integer, check_metric, hyperparameter, step_size_of, without_none
from phalanx.kernels.protocol.whole_draw import WholeDraws
from phalanx.mesh.random_numbers import Bits


class Tuning(NamedTuple):
    """Hyperparameters: `num_steps` leapfrogs of `step_size`, jittered from draw to draw, under a metric."""

    step_size: Any
    jitter: Any
    num_steps: Any
    metric: Any


def draw(key: Bits, at: Point, target: LaneTarget, tuning: Tuning) -> tuple[Point, Info]:
    """Draw a momentum, follow Hamiltonian motion, accept or stay."""
    step_size = tuning.step_size * (1 + tuning.jitter * (2 * target.uniform(key, number=1) - 1))
    new, info, _ = draw_by_trajectory(Hamiltonian(), key, at, tuning.num_steps, step_size, target, tuning.metric)
    return new, info


def hmc(
    num_steps: int = 10,
    step_size: float | None = None,
    *,
    initial_step_size: float = 0.1,
    target_acceptance: float = 0.8,
    tuned_steps: int | None = None,
    step_size_jitter: float = 0.3,
    metric: str | None = None,
    inverse_mass_matrix: Mapping[str, ArrayLike] | ArrayLike | None = None,
    relocate: bool = True,
) -> Kernel:
    r"""Return a Hamiltonian Monte Carlo kernel.

    A momentum $p \sim N(0, M)$ is drawn and $(x, p)$ follows `num_steps` leapfrogs of $H(x, p) = -\log\pi(x) +
    \tfrac12 p^\top M^{-1} p$; the end is accepted with probability $\min(1, e^{H_0 - H_1})$.

    Args:
        num_steps: leapfrogs per draw.
        step_size: length of a leapfrog; None tunes it in warm-up, pooled over all chains.
        initial_step_size: the step size with which tuning starts.
        target_acceptance: the mean acceptance rate at which tuning aims. Until its last windows, warm-up takes a
            harmonic mean of rates, in which failing trajectories weigh more, so that stuck chains move again.
        tuned_steps: warm-up iterations in which step size and metric are tuned; None means all of them.
        step_size_jitter: each draw's step size is the step size times a uniform on 1 - jitter to 1 + jitter. A fixed
            length near a period of the motion would end trajectories where they began, and mix badly.
        metric: the form of the covariance that warm-up learns, pooled over all chains: "diagonal", "dense" or "auto",
            as for `phx.nuts`; "identity" learns none. None is "auto" where the step size is tuned, and "identity" where
            it is given, since a given step size is in the units of the coordinates.
        inverse_mass_matrix: a metric to keep in place of a learned one: a dict of variances by variable name, shaped
            like the variable on its unconstrained scale; or a covariance matrix over all coordinates in the order of
            sorted names. Sharded variables take variances only.
        relocate: in warm-up, move a chain that is stuck in a region of negligible posterior mass to the position of
            another chain; the verdict reports each move.

    Returns:
        A kernel for `phx.mcmc`.

    Raises:
        ValueError: when a hyperparameter is out of range.

    Example:
        >>> import phalanx as phx
        >>> phx.hmc(num_steps=8, step_size=0.2).name
        'hmc(num_steps=8, step_size=0.2)'

    Source:
        Duane, Kennedy, Pendleton, Roweth (1987), Hybrid Monte Carlo; Neal (2011), MCMC using Hamiltonian dynamics,
        whose section 3.2 advises the jitter.
    """
    num_steps = check_integer("hmc", "num_steps", num_steps)
    first_step_size = step_size_of("hmc", step_size, initial_step_size, target_acceptance)
    if not 0 <= step_size_jitter < 1:
        raise ValueError(f"hmc: step_size_jitter must lie between 0 and 1, got {step_size_jitter!r}.")
    if tuned_steps is not None:
        check_integer("hmc", "tuned_steps", tuned_steps, least=0)
    learned_kind, user_metric = _metric(metric, inverse_mass_matrix, step_size is not None)
    return Kernel(
        name=f"hmc(num_steps={num_steps}, step_size={step_size})",
        machine=WholeDraws(draw),
        tuning=Tuning(first_step_size, hyperparameter(float(step_size_jitter)), hyperparameter(num_steps), user_metric),
        tuners=without_none(
            None if learned_kind is None else Metric(learned_kind),
            StepSize(target_acceptance, "num_steps", frees_chains=True) if step_size is None else None,
        ),
        tuned_steps=tuned_steps,
        relocates=relocate,
    )


def _metric(
    metric: str | None, inverse_mass_matrix: Mapping[str, ArrayLike] | ArrayLike | None, keeps_step_size: bool
) -> tuple[str | None, GivenMetric | None]:
    """Return the kind of metric to learn, and the metric that the user gave."""
    if metric is not None:
        check_metric("hmc", metric, (*KINDS, "identity"))
    if inverse_mass_matrix is not None:
        if metric is not None:
            raise ValueError(
                f"hmc: metric={metric!r} asks for a metric, and inverse_mass_matrix= gives another; leave one out."
            )
        return None, given_metric("hmc", inverse_mass_matrix)
    if metric is None:
        metric = "identity" if keeps_step_size else "auto"
    return None if metric == "identity" else metric, None
