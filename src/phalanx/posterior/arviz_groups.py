"""ArviZ's groups of a posterior: draws, statistics, data, and what the model predicts of its data at the draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from phalanx.diagnostics.exchange import check_dimensions, container, dataset, in_arviz_names
from phalanx.inputs.axis_names import AxisNames
from phalanx.mesh.output import warn
from phalanx.mesh.random_numbers import check_seed
from phalanx.posterior.criticism.log_likelihood import log_prior
from phalanx.posterior.criticism.model_at_draws import RunDraws, known_data
from phalanx.posterior.criticism.model_data import ModelData, Shapes, are_deleted
from phalanx.posterior.predictive import predictive as predicted

MOST_BYTES = 2**28
"""Most bytes of a group that is made by default."""

PRIOR_DRAWS = 500
"""Number of draws from the prior by default."""

Arrays = Mapping[str, np.ndarray]
"""Arrays by name."""

NUMBER_BYTES = 4

NO_MODEL = "a posterior that was read from a file, or assembled by hand, has no model"
DELETED = "the data of the run were deleted, as jax.jit(..., donate_argnums=...) and .delete() do"


def to_arviz(
    posterior: Any,
    of_warmup: tuple[Arrays, Arrays, Arrays],
    log_likelihood: bool | None,
    predictive: bool | None,
    prior: bool | int | None,
    seed: int,
) -> Any:
    """Return a posterior in ArviZ's container; see `Posterior.to_arviz`.

    `of_warmup` are its draws, their statistics, and its course.
    """
    check_seed(seed)
    _check_asked(log_likelihood, predictive, prior)
    check_dimensions("to_arviz", posterior.draws)
    groups = _Groups(posterior.record.axes)
    groups.put("posterior", posterior.draws)
    groups.put("sample_stats", in_arviz_names(posterior.stats), has_names=False)
    draws, stats, course = of_warmup
    groups.put("warmup_posterior", draws)
    groups.put("warmup_sample_stats", in_arviz_names(stats), has_names=False)
    if not stats:
        groups.put("warmup_sample_stats", course, ("round",), has_names=False)
    if posterior.target is None or are_deleted(posterior.target):
        reason = NO_MODEL if posterior.target is None else DELETED
        if log_likelihood or predictive or prior:
            raise ValueError(f"to_arviz: {reason}. Ask for these groups where the run was made.")
        groups.left_out["groups of the model and its data"] = reason
    else:
        _add_groups_of_model(groups, posterior, log_likelihood, predictive, prior, seed)
    return groups.in_container()


def _add_groups_of_model(
    groups: _Groups,
    posterior: Any,
    log_likelihood: bool | None,
    predictive: bool | None,
    prior: bool | int | None,
    seed: int,
) -> None:
    target = posterior.target
    record = posterior.record
    assert target is not None  # the caller has checked it
    data = ModelData.of(target)
    total = posterior.num_chains * posterior.num_draws
    bytes_per_draw = _bytes(data.observed) + _bytes(data.computed)

    def add_replicates() -> None:
        """Add the observed variables, drawn anew at each draw; raise if the model observes no variable."""
        if not data.observed:
            raise ValueError(
                "to_arviz: the model observes no variable, so there is no variable to draw anew for "
                "posterior_predictive. Observe values by phx.sample(name, distribution, obs=values)."
            )
        predictions = posterior.predictive(given=[], seed=seed)
        groups.put("posterior_predictive", {name: predictions[name] for name in data.observed})

    def add_prior() -> None:
        """Add draws from the prior to `groups`: of latent variables, and of the observed ones."""
        sizes = 1, PRIOR_DRAWS if prior is None or prior is True else int(prior)
        run = RunDraws(target, tuple(record.latents), sizes=sizes, data=known_data(target, record))
        predictions = predicted(None, None, "prior", run, seed=seed)
        groups.put("prior", {name: values for name, values in predictions.items() if name not in data.observed})
        groups.put("prior_predictive", {name: predictions[name] for name in data.observed})

    def add_terms() -> None:
        """Add the log density of each observation at each draw to `groups`."""
        groups.put("log_likelihood", posterior.log_likelihood())

    def add_prior_terms() -> None:
        """Add the log density of each latent variable at each draw to `groups`."""
        sizes = posterior.num_chains, posterior.num_draws
        run = RunDraws(target, tuple(record.latents), posterior.draws, sizes, known_data(target, record))
        groups.put("log_prior", log_prior(run))

    if total:
        groups.offer("posterior_predictive", "predictive=True", predictive, total * bytes_per_draw, add_replicates)
        groups.offer("log_likelihood", "log_likelihood=True", log_likelihood, total * _bytes(data.observed), add_terms)
        groups.offer("log_prior", "log_likelihood=True", log_likelihood, total * _bytes(data.latent), add_prior_terms)
    groups.offer("prior", "prior=100", prior, PRIOR_DRAWS * (bytes_per_draw + _bytes(data.latent)), add_prior)
    groups.offer(
        "observed_data", "", None, _bytes(data.observed), lambda: groups.put("observed_data", data.observations(), ())
    )
    groups.offer(
        "constant_data",
        "",
        None,
        data.constant_bytes,
        lambda: groups.put("constant_data", data.constants(record.scalars), ()),
    )


@dataclass
class _Groups:
    """Groups of the container so far.

    Attributes:
        names: names of the axes of variables and data.
        groups: each group in ArviZ's form, by name.
        left_out: reasons for which groups are missing, by name.
        too_large: texts for a warning about groups that are missing because of their size.
    """

    names: AxisNames
    groups: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    too_large: list[str] = field(default_factory=list)

    def put(
        self, group: str, arrays: Mapping[str, Any], leading: Sequence[str] = ("chain", "draw"), has_names: bool = True
    ) -> None:
        """Store a group of arrays in `groups`, if there are any; `leading` names their first axes."""
        if arrays:
            names, arrays = _apart(self.names, arrays, len(leading)) if has_names else (AxisNames(), arrays)
            self.groups[group] = dataset(arrays, names, leading)

    def offer(self, group: str, way: str, request: bool | int | None, size: int, add: Callable[[], None]) -> None:
        """Call `add` if the group is asked for; if it is neither asked for nor refused, only if it is small.

        A group that is too large, or that the model cannot make, is noted in `left_out`, unless it is asked for.

        Args:
            group: its name.
            way: the argument that asks for it.
            request: True or a number if it is asked for, None if not, False if it is refused.
            size: bytes of its arrays.
            add: function that computes the arrays and passes them to `put`.
        """
        if request is False:
            return
        if request is None and size > MOST_BYTES:
            self.left_out[group] = f"its arrays take {size / 2**30:.1f} GiB"
            self.too_large.append(f"{group} ({size / 2**30:.1f} GiB{f': {way}' if way else ''})")
            return
        try:
            add()
        except (TypeError, ValueError, NotImplementedError) as error:  # refusals of the model, such as of its factors
            if request is not None:
                raise
            self.left_out[group] = str(error)

    def in_container(self) -> Any:
        """Return the container, which has the reasons for groups that are left out among its attributes."""
        if self.too_large:
            warn(
                f"to_arviz: left out, since they are large: {', '.join(self.too_large)}. Ask for one by its argument; "
                f"posterior.log_likelihood(), posterior.predictive() and reducers compute without a container.",
                stacklevel=5,
            )
        return container(self.groups, {f"without {group}": reason for group, reason in self.left_out.items()})


def _apart(names: AxisNames, arrays: Mapping[str, Any], leading: int) -> tuple[AxisNames, dict[str, Any]]:
    """Return names of axes, and arrays, of which `x` is called `x_data` if a dimension of the group is `x`."""
    ranks = {name: np.ndim(values) - leading for name, values in arrays.items()}
    dims = {dim for name, rank in ranks.items() for dim in names.dims_of(name, rank)}
    group_names = {name: f"{name}_data" if name in dims else name for name in arrays}
    dims_of_calls = {group_names[name]: of_axes for name, of_axes in names.dims.items() if name in group_names}
    return replace(names, dims=dims_of_calls), {group_names[name]: values for name, values in arrays.items()}


def _bytes(shapes: Shapes) -> int:
    return NUMBER_BYTES * sum(map(math.prod, shapes.values()))


def _check_asked(log_likelihood: Any, predictive: Any, prior: Any) -> None:
    for name, request in (("log_likelihood", log_likelihood), ("predictive", predictive)):
        if request is not None and not isinstance(request, bool):
            raise TypeError(f"to_arviz: {name} must be True, False or None; got {request!r}.")
    if prior is not None and not isinstance(prior, bool) and not (isinstance(prior, int | np.integer) and prior > 0):
        raise ValueError(f"to_arviz: prior must be a number of draws above zero, True, False or None; got {prior!r}.")
