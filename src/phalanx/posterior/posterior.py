"""Posterior of a run: its draws, statistics and record, and the user's way to tables, predictions and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import jax
import numpy as np

from phalanx.density.target import Target
from phalanx.diagnostics import Check, Verdict
from phalanx.diagnostics.exchange import check_dimensions, dataset
from phalanx.errors.message_text import first_few
from phalanx.errors.names import UnknownVariable, hint
from phalanx.inputs.dataframe_input import UserData
from phalanx.language.tracing import Program
from phalanx.mesh.agreement import check_same
from phalanx.mesh.random_numbers import check_seed
from phalanx.posterior.arviz_groups import to_arviz
from phalanx.posterior.continuation import Continuation, FromFile
from phalanx.posterior.criticism.log_likelihood import log_likelihood
from phalanx.posterior.criticism.loo import Loo, leave_one_out
from phalanx.posterior.criticism.model_at_draws import RunDraws, known_data
from phalanx.posterior.criticism.reduced_results import ValuesAtDraws
from phalanx.posterior.display import posterior_as_html, posterior_in_words
from phalanx.posterior.draw_tables import DIRECTIONAL, angles_among, draws_frame, summarize
from phalanx.posterior.file import WARMUP_PARTS, warmup_parts, write_posterior
from phalanx.posterior.judging import judge_run
from phalanx.posterior.over_draws import predict
from phalanx.posterior.predictive import PredictiveDraws, check_kind, chosen, predictive
from phalanx.posterior.record import RunRecord, Timing
from phalanx.posterior.rounding import rounding_error, with_rounding
from phalanx.posterior.run_folder import read_saved
from phalanx.posterior.together import ProcessDraws, on_all_chains, report_together, save_together
from phalanx.reducers.reducer import Reduce, Reducer
from phalanx.store.pickles import Pickled
from phalanx.store.save_path import file_to_save, is_netcdf, write_netcdf

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from xarray import Dataset

    from phalanx.diagnostics.table import SummaryTable

_PROB = 0.94
"""Default fraction of the draws inside a summary's interval."""


@dataclass(frozen=True, repr=False, eq=False)
class Posterior(Pickled):
    """Draws from a posterior, with the statistics of the sampler and the record of the run.

    In a run of several processes, `draws` and `stats` of each process have the chains of its own devices, `chains`. The
    methods are those of all chains: they gather what they need, so that all processes must call them together; `report`
    and `save` are written by the first. `gather()` returns the draws of all chains.

    A pickle holds what a file of `save` holds, and no model. A deep copy shares model and compiled programs.

    Attributes:
        draws: arrays of shape `(chain, draw, ...)` by variable name.
        stats: arrays of shape `(chain, draw)`: acceptance_rate, diverging, num_steps, energy, step_size, log_density;
            of NUTS also tree_depth and reached_max_depth. Energy and log density are in float64.
        timing: seconds of each phase, and gradient evaluations.
        record: model, kernel, sizes, mesh, devices, data, versions.
        reduced: results of the reducers, by reducer name, and by variable where a reducer covers several.
        warmup: course of warm-up, arrays `(round,)`: iteration (mean draws of a chain at the end of the round),
            step_size (in use in the round), acceptance_rate, divergences, metric_changed (True if a new metric was in
            use after it), relocated_chains; if tuned, metric_low and metric_high (least and greatest standard deviation
            in the metric), and trajectory_length. Empty if the run tuned no parameter.
        target: the model with its data; None if the posterior was read from a file.
        continuation: continues the run; None for a posterior assembled by hand.
        held_draws: place of these draws among those of several processes; None if they are of all chains.
        warmup_draws, warmup_stats: draws of warm-up and their statistics, `(chain, iteration, ...)`; empty without
            `save_warmup=True`.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 10.0))
        ...     phx.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> posterior = phx.mcmc(model, {"y": jnp.arange(5.0)}, kernel=phx.hmc(num_steps=3), progress=False)
        >>> posterior.draws["mean"].shape
        (4, 1000)
    """

    draws: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]
    timing: Timing
    record: RunRecord
    reduced: dict[str, Any] = field(default_factory=dict)
    warmup: dict[str, np.ndarray] = field(default_factory=dict)
    target: Target | None = None
    continuation: Continuation | None = None
    held_draws: ProcessDraws | None = None
    warmup_draws: dict[str, np.ndarray] = field(default_factory=dict)
    warmup_stats: dict[str, np.ndarray] = field(default_factory=dict)

    of_process: ClassVar[dict[str, Any]] = {"target": None, "continuation": None, "held_draws": None}

    def __getstate__(self) -> dict[str, Any]:
        if self.held_draws is not None:
            raise TypeError(
                "pickle: this posterior has the draws of one of several processes. Pickle posterior.gather(), which "
                "all processes must call, or use posterior.save."
            )
        continuation = self.continuation and FromFile(self.continuation.saved(), dict(self.continuation.contents()))
        return {**super().__getstate__(), "continuation": continuation}

    @property
    def num_chains(self) -> int:
        """Chains of the run that have draws."""
        return self._sizes[0]

    @property
    def num_draws(self) -> int:
        """Stored draws of each chain: fewer than requested if the run was interrupted or thinned."""
        return self._sizes[1]

    @property
    def _sizes(self) -> tuple[int, int]:
        arrays = [*self.stats.values(), *self.draws.values()]
        chains, draws = arrays[0].shape[:2] if arrays else (self.record.num_chains, 0)
        return chains if self.held_draws is None else self.held_draws.held.num_chains, draws

    @property
    def _run_draws(self) -> RunDraws:
        record = self.record
        data = known_data(self.target, self.record)
        return RunDraws(self.target, tuple(record.latents), self.draws, self._sizes, data, record.observed, record.axes)

    @property
    def _not_kept(self) -> list[str]:
        """Variables of the model without stored draws."""
        names = self.record.latents if self.target is None else self.target.value_names()
        return [name for name in names if name not in self.draws]

    @property
    def chains(self) -> np.ndarray:
        """Numbers of the chains in `draws`, `stats`, and those of warm-up."""
        return np.arange(self.num_chains) if self.held_draws is None else self.held_draws.held.numbers

    @cached_property
    def of_all_chains(self) -> Posterior:
        """The posterior with draws of all chains, gathered from all processes together when they are used."""
        return self if self.held_draws is None else self.held_draws.joined(self, self.held_draws.on_use)

    def gather(self) -> Posterior:
        """Return the posterior with the draws of all chains in the memory of each process, which must all call it.

        Returns:
            A posterior of one process; this one if there are no other processes.

        Raises:
            RuntimeError, ValueError: if another process has ended, or makes another call.

        Example:
            >>> posterior.gather().draws["mean"].shape  # doctest: +SKIP
            (4, 1000)
        """
        held_draws = self.held_draws
        if held_draws is None:
            return self
        check_same("posterior.gather")
        return held_draws.joined(self, held_draws.gathered)

    @property
    def num_divergences(self) -> int:
        """Divergent draws over all chains."""
        if self.held_draws is not None:
            return self.held_draws.divergences
        return int(np.sum(self.stats["diverging"])) if "diverging" in self.stats else self.record.divergences

    @cached_property
    def state(self) -> Any:
        """State of the run, from which it can continue: positions of the chains, tuning, reducer states.

        Raises:
            ValueError: if a run did not make the posterior.
        """
        if self.continuation is None:
            raise ValueError("state: this posterior was not made by a run, or by an earlier release.")
        if self.held_draws is not None:
            check_same("posterior.state")
        return self.continuation.state()

    def continue_run(self, num_samples: int, **options: Any) -> Posterior:
        """Continue the run with its tuning, and return the draws of one longer run.

        On the same number of devices, the draws equal those of one longer run bit for bit. On another number, sums are
        rounded in another order, and chains may differ after many draws.

        Args:
            num_samples: iterations per chain to add.
            options: `until`, `on_block` and `progress`, as for `phx.mcmc`; the `seconds` of `until` count from now.

        Returns:
            A posterior with the draws before and after; this one is unchanged.

        Raises:
            ValueError: if the posterior was read from a file, which holds no model. Compile the model, and call
                `phx.compile(...).continue_run(posterior, num_samples)`.

        Example:
            >>> posterior.continue_run(500).num_draws  # doctest: +SKIP
            1500
        """
        if self.continuation is None:
            raise ValueError("continue_run: this posterior was not made by a run, or by an earlier release.")
        return self.continuation.continue_run(self, num_samples, **options)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the draws of one variable, `(chain, draw, ...)`."""
        if name not in self.draws:
            available = ", ".join(map(repr, self.draws)) or "none"
            raise UnknownVariable(
                f"posterior[{name!r}]: there is no variable {name!r} among the draws; they are: {available}."
                f"{hint(str(name), self.draws, self._not_kept)}"
            )
        return self.draws[name]

    def __contains__(self, name: object) -> bool:
        return name in self.draws

    def __iter__(self) -> Iterator[str]:
        return iter(self.draws)

    @on_all_chains
    def to_dataframe(self) -> DataFrame:
        """Return the draws as a `pandas.DataFrame`: one row per draw, one column per scalar quantity.

        Returns:
            A table with the columns `chain` and `draw`, counted from 0, then one column per scalar element of each
            variable, named as in the summary: `mean`, `w[0]`, or `w[east]` if the data name the entries.

        Raises:
            ValueError: if there are no draws, or a variable is called `chain` or `draw`.

        Example:
            >>> list(posterior.to_dataframe().columns)  # doctest: +SKIP
            ['chain', 'draw', 'mean']
        """
        return draws_frame(self.draws, self.record.labels)

    @on_all_chains
    def summary(self, names: Iterable[str] | None = None, *, prob: float = _PROB) -> SummaryTable:
        """Summarise every scalar element of every variable in one table; see `phalanx.diagnostics.summary_table`.

        Args:
            names: variables, in this order; None for all.
            prob: fraction of the draws between `hdi_low` and `hdi_high`, the narrowest interval with so many.

        Returns:
            A table with the columns mean, sd, hdi_low, hdi_high, mcse_mean, mcse_sd, ess_bulk, ess_tail and
            r_hat. Its first row is the log density. Rows are called `b`, `b[0]`, or `b[age]` if the data name the
            entries. The table of all variables prints the verdict on the run below its rows, and has it as its
            attribute `verdict`. If there are more than 40 quantities, it prints the 40 that mixed worst.

        Raises:
            ValueError: if a name is unknown, there are no draws, or `prob` is not between 0 and 1.

        Example:
            >>> list(posterior.summary().index)  # doctest: +SKIP
            ['log_density', 'mean']
        """
        if names is not None:
            return self._summarize(names, prob)
        whole = self._summary_of_all if prob == _PROB else self._summarize(self.draws, prob)
        table = whole.copy()
        angles = [name for name in angles_among(self.record.latents) if name in self.draws]
        notes = [DIRECTIONAL.format(first_few(angles))] if angles else []
        table.verdict = self.verdict()
        table.num_heads = whole.num_heads
        table.notes = (*self.record.notes, *notes)
        return table

    @on_all_chains
    def verdict(self, checks: Sequence[Check] = ()) -> Verdict:
        """Judge whether the draws are good to use, with problems and advice; see `phalanx.diagnostics.judge`.

        Without stored draws, the verdict is that of the reducers `rhat()` and `ess()`.

        Args:
            checks: your checks on stored draws, after the built-in ones. Each takes the run's
                `phalanx.diagnostics.CheckedRun` and returns a `Finding`, a sentence on what is in order, or None.

        Returns:
            The verdict: `grade` ("good", "usable" or "not good"), `good`, `headline`, `findings` (each a problem and an
            advice, with its grade) and `passed`, sentences on what is in order.

        Raises:
            ValueError: if there are no draws, stored or reduced, or `checks` are given without stored draws of chains.

        Example:
            >>> posterior.verdict().good  # doctest: +SKIP
            True
        """
        verdict = judge_run(
            self.record, self.draws, self.stats, self.reduced, self._sizes, lambda: self._summary_of_all, checks
        )
        return with_rounding(verdict, self.target, self.draws, self.stats, lambda: self._rounding)

    @cached_property  # compiles the model twice
    def _rounding(self) -> float | str:
        assert self.target is not None
        return rounding_error(self.target, self.draws)

    @cached_property  # thousands of elements take seconds, and a report asks again
    def _summary_of_all(self) -> SummaryTable:
        return self._summarize(self.draws, _PROB)

    def _summarize(self, names: Iterable[str], prob: float) -> SummaryTable:
        angles = angles_among(self.record.latents)
        return summarize(self.draws, self.stats, names, prob, self.record.labels, self._not_kept, angles)

    def predict(self, fn: Callable[..., Any], *, seed: int = 0, batch_size: int = 100) -> Any:
        """Evaluate a function of the variables at every draw.

        Args:
            fn: maps a dict of one draw's values by name to an array or a pytree of arrays; JAX compiles it. A second
                argument receives a key, another for every draw: `fn(draw, key)`.
            seed: a whole number. The key of a draw depends only on the seed, the chain and the draw.
            batch_size: draws evaluated at a time, which bounds the memory on the device.

        Returns:
            The results of `fn`, each array with leading axes `(chain, draw)`.

        Raises:
            ValueError: if there are no draws, `fn` asks for a variable that was not kept, or returns no array.
            TypeError: if `fn` is not a function or returns something other than arrays.

        Example:
            >>> posterior.predict(lambda values: values["mean"] ** 2).shape  # doctest: +SKIP
            (4, 1000)
        """
        check_seed(seed)
        if self.held_draws is None:
            return predict(fn, self.draws, seed=seed, batch_size=batch_size, not_kept=self._not_kept)
        check_same("posterior.predict", lambda: {"seed": str(seed)})
        held_chains = self.held_draws.held
        not_kept = self._not_kept
        predicted = predict(
            fn, self.draws, seed=seed, batch_size=batch_size, not_kept=not_kept, chains=held_chains.numbers
        )
        return jax.tree.map(held_chains.gathered, predicted)

    @on_all_chains
    def predictive(
        self,
        data: UserData | None = None,
        kind: Literal["posterior", "prior"] = "posterior",
        *,
        given: str | Sequence[str] | None = None,
        num_draws: int | None = None,
        keep: str | Sequence[str] | None = None,
        reducers: Mapping[str, Reducer | Reduce] | None = None,
        model: Program | None = None,
        seed: int = 0,
    ) -> PredictiveDraws:
        r"""Sample the observed variables anew at every draw: $y^* \sim p(y \mid \theta, x)$ with $\theta$ a draw.

        The model runs again at each draw, on its own data or on others, in batches on the mesh; data that were placed
        with `phx.shard` stay in place. Observed variables are sampled, with or without their data, and so is every
        variable that the run did not infer; deterministic values are computed. An observed variable on which others
        depend, such as a covariate that the model imputes, is held at its data instead, and its missing entries are
        sampled. An inferred variable is sampled, too, if its distribution depends on a variable that `phx.do` sets, on
        an observed one that has no value in `data`, or on one that is held at other values than those of the run.

        Args:
            data: keyword arguments of the model; None for those of the run. Levels and columns match those of the run
                by name, in any order. An argument that is only observed may be None, or left out if it has a default:
                its variable then has the shape of its distribution. Numbers, flags and words that are left out are the
                run's.
            kind: "posterior" takes the inferred variables from the draws; "prior" samples them from the prior.
            given: names of the observed variables to hold at their data, or one name; None for those on which another
                variable that is sampled depends, and `[]` for none: all are sampled.
            num_draws: draws of each chain: of the posterior so many that are stored, taken evenly, of the prior any
                number; None for as many as there are.
            keep: names of variables to return, or one name; None for all, and `[]` with `reducers` alone.
            reducers: reducers of the draws by name, as for `phx.mcmc`: draws accumulate in a state of constant size. A
                function in `phx.reduce` receives the inferred variables, too.
            model: the program, if the posterior was read from a file; or another one with the same variables, such as
                `phx.do(model, {"dose": 2.0})`.
            seed: a whole number. The noise of a draw depends only on the seed, the chain and the draw.

        Returns:
            Arrays of shape `(chain, draw, ...)` by variable: the observed ones, of which those that are held have their
            data in each draw; deterministic ones, and inferred ones that are sampled anew; with `kind="prior"` all
            inferred ones. The dict has the results of the reducers as its attribute `reduced`, and the names of entries
            as `labels`.

        Raises:
            TypeError: if the data do not fit the model.
            ValueError: if a level is unknown, a column is missing, or data lack the names that the run's data had; or
                if the draws of a variable were not kept, its shape differs on these data (it belongs to the rows of
                the run), or it cannot be sampled; if `keep` has an unknown name, `given` one that the data do not
                observe, or missing entries cannot be sampled given the others; or if there are fewer draws than
                `num_draws`. The message names it.

        Example:
            >>> posterior.predictive({"y": None})["y"].shape  # doctest: +SKIP
            (4, 1000)

        Source: A. Gelman, X.-L. Meng, H. Stern (1996), Posterior predictive assessment of model fitness via realized
        discrepancies.
        """
        check_seed(seed)
        check_kind(kind)
        numbers = chosen(num_draws, kind, self.num_draws or (self.record.num_samples if kind == "prior" else 0))
        run = replace(self._run_draws, sizes=(self.num_chains, len(numbers)))
        return predictive(model, data, kind, run, seed=seed, given=given, numbers=numbers, keep=keep, reducers=reducers)

    @on_all_chains
    def log_likelihood(
        self,
        data: UserData | None = None,
        *,
        keep: str | Sequence[str] | None = None,
        reducers: Mapping[str, Reducer | Reduce] | None = None,
        model: Program | None = None,
    ) -> ValuesAtDraws:
        r"""Evaluate the log density of each observation at every draw: $\log p(y_i \mid \theta, x)$.

        An observation is what has one density: a number, or a vector of a multivariate distribution or under
        `.to_event()`. Terms of `phx.factor` are not observations and are left out. Terms are not scaled by `phx.scale`,
        as in NumPyro, and entries that a mask leaves out have the term 0. The model runs at each draw in batches on the
        mesh; data that were placed with `phx.shard` stay in place, and padded rows are left out.

        Args:
            data: keyword arguments of the model, such as held-out data; None for those of the run. Levels and columns
                match those of the run by name, in any order. Numbers, flags and words that are left out are the run's.
            keep: names of observed variables to return, or one name; None for all, and `[]` with `reducers` alone.
            reducers: reducers of the densities by name, as for `phx.mcmc`: for data and draws whose densities do not
                fit into memory. A function in `phx.reduce` receives the inferred variables, too.
            model: the program, if the posterior was read from a file; or another one with the same variables.

        Returns:
            Arrays of shape `(chain, draw, ...)` by observed variable, with one entry for each observation. The dict has
            the results of the reducers as its attribute `reduced`.

        Raises:
            TypeError: if the data do not fit the model.
            ValueError: if the model observes no variable (its likelihood is a `phx.factor`), a variable has neither
                draws nor a value, the data lack names of the run's data, or `keep` has an unknown name. The message
                names it.

        Example:
            >>> posterior.log_likelihood()["y"].shape  # doctest: +SKIP
            (4, 1000, 5)
        """
        return log_likelihood(model, data, self._run_draws, keep, reducers)

    @on_all_chains
    def loo(
        self,
        data: UserData | None = None,
        *,
        names: str | Sequence[str] | None = None,
        model: Program | None = None,
    ) -> Loo:
        r"""Estimate how well the model predicts each observation from all others, by importance weights of the draws.

        $$\mathrm{elpd} = \sum_i \log p(y_i \mid y_{-i}), \qquad
        p(y_i \mid y_{-i}) = \frac{\sum_s w_{is}\, p(y_i \mid \theta_s)}{\sum_s w_{is}}, \qquad
        w_{is} \propto \frac{1}{p(y_i \mid \theta_s)}$$

        with the tail of the weights smoothed by a generalised Pareto distribution. ArviZ computes it if the log
        densities of all draws fit into memory. Otherwise, or without ArviZ, they are computed batch by batch on the
        mesh, and only the largest ratios of each observation are kept. Without stored draws the result is that of the
        reducer `phx.reducers.loo()`. Draws of a guide (`fit.posterior`) have importance weights, which multiply
        $w_{is}$.

        Args:
            data: the run's keyword arguments of the model; None if the posterior has them.
            names: names of the observed variables whose entries are left out and predicted, or one name; None for all.
                The others stay data.
            model: the program, if the posterior was read from a file.

        Returns:
            A `Loo`: elpd, se, p_loo, pointwise, pareto_k, num_bad, good, and printed with a verdict.

        Raises:
            ValueError: if the model observes no variable (its likelihood is a `phx.factor`) or not one in `names`, a
                log density is scaled, or there are neither draws nor results of `phx.reducers.loo()`.

        Example:
            >>> posterior.loo().good  # doctest: +SKIP
            True

        Source: A. Vehtari, A. Gelman, J. Gabry (2017), Practical Bayesian model evaluation using leave-one-out
        cross-validation and WAIC.
        """
        log_weights = self.stats.get("log_weight")
        estimates = leave_one_out(model, data, self._run_draws, self.reduced, log_weights, names)
        labels = {name: self.record.axes.labels_of(name, values.shape) for name, values in estimates.pareto_k.items()}
        return replace(estimates, labels=labels)

    @on_all_chains
    def sensitivity(
        self,
        data: UserData | None = None,
        *,
        names: str | Sequence[str] | None = None,
        model: Program | None = None,
    ) -> DataFrame:
        r"""Measure how much the posterior changes where its prior, or its likelihood, is raised to a power.

        $p(\theta \mid y) \propto p(\theta)^\alpha\, p(y \mid \theta)$ is approximated by importance weights of the
        draws, with $\alpha$ next to one. The sensitivity is the cumulative Jensen-Shannon distance between weighted and
        plain draws, for each doubling of $\alpha$; from .05 on a density counts as informative. The prior is of all
        latent variables, the effects of groups included. Terms of `phx.factor` count to neither.

        Args:
            data: the run's keyword arguments of the model; None if the posterior has them.
            names: names of the variables to list, or one name; None for all with draws.
            model: the program, if the posterior was read from a file.

        Returns:
            A table with a row for each element, and the columns prior, likelihood and diagnosis: empty where the prior
            hardly matters, otherwise whether the data disagree with it or say little.

        Raises:
            ValueError: if there are no draws of a variable, the model observes no variable, a log density is scaled, or
                the draws have importance weights.

        Example:
            >>> posterior.sensitivity().columns.tolist()  # doctest: +SKIP
            ['prior', 'likelihood', 'diagnosis']

        Source: N. Kallioinen, T. Paananen, P.-C. Bürkner, A. Vehtari (2023), Detecting and diagnosing prior and
        likelihood sensitivity with power-scaling.
        """
        from phalanx.posterior.criticism.sensitivity import sensitivity  # of few runs

        labels = {name: self.record.axes.labels_of(name, values.shape[2:]) for name, values in self.draws.items()}
        log_weights = self.stats.get("log_weight")
        return sensitivity(model, data, self._run_draws, self.draws, labels, log_weights, names)

    @on_all_chains
    def to_xarray(self) -> Dataset:
        """Return the draws as an `xarray.Dataset`, with names of dimensions and entries.

        Returns:
            A data set with the variables of `draws`. Their dimensions are `chain`, `draw`, and those of `dims=`, of
            plates and of data; an axis without a name is `<variable>_dim_0`, ....

        Raises:
            ImportError: if xarray is not installed; ArviZ brings it.
            ValueError: if a variable has the name of a dimension.

        Example:
            >>> posterior.to_xarray()["mean"].mean(("chain", "draw")).ndim  # doctest: +SKIP
            0
        """
        check_dimensions("to_xarray", self.draws)
        return dataset(self.draws, self.record.axes)

    @on_all_chains
    def to_arviz(
        self,
        *,
        log_likelihood: bool | None = None,
        predictive: bool | None = None,
        prior: bool | int | None = None,
        seed: int = 0,
    ) -> Any:
        """Convert to ArviZ's container, for its plots and comparisons.

        The groups are `posterior`, `sample_stats` (acceptance_rate, diverging, n_steps, energy, step_size, lp; of NUTS
        also tree_depth and reached_max_treedepth), `warmup_sample_stats` (the course of warm-up along `round`; with
        `save_warmup=True` the statistics of `warmup_posterior`), `observed_data`, `constant_data`; and, by running the
        model again, `log_likelihood` (which `arviz.loo` needs), `log_prior` (`arviz.psens`), `posterior_predictive`
        (`arviz.plot_ppc`), `prior` and `prior_predictive`. The argument None makes such a group if the model is known
        and can, and its arrays take at most 256 MiB; a larger one is left out with a warning. Attributes of the
        container say why a group is left out.

        Args:
            log_likelihood: True for the densities of observations and latent variables in any case, False to leave
                them out.
            predictive: True for predictive draws in any case, False to leave them out.
            prior: number of draws from the prior, True for 500, False to leave them out.
            seed: source of predictive draws and those from the prior.

        Returns:
            `arviz.InferenceData` with ArviZ 0.2x, `xarray.DataTree` with ArviZ 1.x. In names of variables a slash
            becomes a full stop. An argument with the name of a dimension of `constant_data` is called `<name>_data`.

        Raises:
            ImportError: if ArviZ is not installed.
            ValueError: if a variable has the name of a dimension, or the model cannot make a group that is asked for.

        Example:
            >>> data = posterior.to_arviz()  # doctest: +SKIP
            >>> data.posterior["mean"].dims  # doctest: +SKIP
            ('chain', 'draw')
            >>> data.log_likelihood["y"].dims  # doctest: +SKIP
            ('chain', 'draw', 'y_dim_0')
        """
        of_warmup = self.warmup_draws, self.warmup_stats, self.warmup
        return to_arviz(self, of_warmup, log_likelihood, predictive, prior, seed)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the posterior to one file; an error leaves an existing file unchanged.

        The file is an `.npz` archive of plain arrays with a JSON entry; it holds no pickles, so it is safe to load.
        With the ending `.nc` it is netCDF instead, for ArviZ, xarray, R and Julia: the groups of `to_arviz()`, which
        `load` does not read.

        Args:
            path: the file: `run.npz`, or without an ending; or `run.nc`. Its folder must exist.

        Returns:
            The path written.

        Raises:
            FileNotFoundError: if the folder is missing.
            ValueError: if `path` is a folder, or has the ending of another format.
            ImportError: if ArviZ, or a package that writes netCDF, is not installed.
            TypeError: if `reduced` holds something other than arrays, numbers and strings in dicts, lists and tuples.

        Example:
            >>> posterior.save("run.npz")  # doctest: +SKIP
            PosixPath('run.npz')
        """
        file = file_to_save(path, "run.npz")
        if self.held_draws is not None:
            return save_together(self, file)
        if is_netcdf(file):
            return write_netcdf(file, self.to_arviz)
        parts = {name: getattr(self, name) for name in ("draws", "stats", "reduced", "warmup", *WARMUP_PARTS)}
        return write_posterior(file, parts, self.timing, self.record, self.continuation)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Posterior:
        """Read a posterior that `save` wrote, bit for bit, or the run so far from a folder given as `checkpoint=`.

        Args:
            path: the file, the folder, or the manifest of a save in it, such as `save-00000012-at-2000.json`.

        Returns:
            The posterior; NamedTuples within `reduced` are of new classes.

        Raises:
            FileNotFoundError, ValueError: if the file does not exist, is not a posterior, or is damaged.

        Example:
            >>> Posterior.load("run.npz").num_draws  # doctest: +SKIP
            1000
        """
        (parts, timing, record), continuation = read_saved(Path(path))
        results = parts["reduced"]
        warmup = parts.get("warmup", {})
        of_warmup = warmup_parts(parts)
        return cls(
            parts["draws"], parts["stats"], timing, record, results, warmup, continuation=continuation, **of_warmup
        )

    def report(
        self,
        path: str | PathLike[str],
        *,
        names: str | Iterable[str] | None = None,
        beside: Posterior | None = None,
        figures: Mapping[str, Figure] | None = None,
        checks: Sequence[Check] = (),
    ) -> Path:
        """Write one self-contained HTML page: verdict, variables, summary, checks of the model, plots, and record.

        Args:
            path: the file to write; missing folders are made.
            names: variables to show, in this order, or one name; None for all. The verdict is on all.
            beside: another posterior, drawn over this one and compared with it in a table.
            figures: your matplotlib figures by title, placed after the built-in ones.
            checks: your checks, as for `verdict`.

        Raises:
            ValueError: if there are no draws, a name is unknown, or `path` is a folder.

        Example:
            >>> posterior.report("report.html")  # doctest: +SKIP
            PosixPath('report.html')
        """
        from phalanx.report import write_report  # many modules, which a run does not need

        if self.held_draws is not None:
            options = {"figures": figures, "checks": checks, "names": names}
            return report_together(self, Path(path), beside, options)
        return write_report(self, path, figures, checks, names=names, beside=beside)

    def __repr__(self) -> str:
        return posterior_in_words(self)

    def _repr_html_(self) -> str:
        return posterior_as_html(self)
