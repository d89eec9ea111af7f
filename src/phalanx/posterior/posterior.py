"""The posterior: draws, statistics, and what was run; everything a user does after a run starts here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from phalanx.density.target import Target
from phalanx.diagnostics import Check, Verdict, judge, judge_folded, judged, to_arviz
from phalanx.errors.names import UnknownVariable, hint
from phalanx.errors.words import count
from phalanx.inputs.known_data import KnownData
from phalanx.language.tracing import Program
from phalanx.mesh.keys import check_seed
from phalanx.posterior.continuation import Continuation, FromFile
from phalanx.posterior.file import read_posterior, write_posterior
from phalanx.posterior.predict import predict
from phalanx.posterior.predictive import predictive
from phalanx.posterior.record import RunRecord, Timing
from phalanx.posterior.tables import draws_frame, summarize
from phalanx.report import write_report
from phalanx.store.save_path import file_to_save, is_netcdf, write_netcdf

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from phalanx.diagnostics.table import SummaryTable

_PROB = 0.94
"""Share of the draws inside a summary's interval, unless another is given."""


@dataclass(frozen=True, repr=False, eq=False)
class Posterior:
    """Draws from a posterior, with the statistics of the sampler and the record of the run.

    Attributes:
        draws: arrays of shape `(chain, draw, ...)` by variable name.
        stats: arrays of shape `(chain, draw)`: acceptance_rate, diverging, num_steps, energy, step_size, log_density;
            of NUTS also tree_depth and reached_max_depth. Energy and log density are in float64.
        timing: seconds of each phase, and gradient evaluations.
        record: model, kernel, sizes, mesh, devices, data, versions.
        reduced: what the reducers folded the draws into, by reducer name, and by variable where there are several.
        warmup: how warm-up went, an array `(round,)` of each of: iteration (draws of a chain when the round ended, on
            average), step_size (in use in the round), acceptance_rate, divergences, metric_changed (whether a new
            metric was in use after the round), relocated_chains; and trajectory_length, where it is tuned. Empty where
            nothing was tuned.
        target: the model with its data; None when read from a file.
        goes_on: what can go on with the run; None of a posterior put together by hand.

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
    goes_on: Continuation | None = None

    @property
    def num_chains(self) -> int:
        """Chains in the draws."""
        return self._sizes[0]

    @property
    def num_draws(self) -> int:
        """Draws kept of each chain: fewer than were asked for when the run was interrupted or thinned."""
        return self._sizes[1]

    @property
    def num_divergences(self) -> int:
        """Draws, over all chains, whose trajectory diverged."""
        return int(np.sum(self.stats["diverging"])) if "diverging" in self.stats else self.record.divergences

    @property
    def _sizes(self) -> tuple[int, int]:
        arrays = [*self.stats.values(), *self.draws.values()]
        return arrays[0].shape[:2] if arrays else (self.record.num_chains, 0)

    @cached_property
    def state(self) -> Any:
        """The run as a value, from which it can go on: where chains are, the tuning, and what reducers know.

        Raises:
            ValueError: when the posterior was not made by a run.
        """
        if self.goes_on is None:
            raise ValueError("state: this posterior was not made by a run, or by an earlier release.")
        return self.goes_on.state()

    def continue_run(self, num_samples: int, **options: Any) -> Posterior:
        """Go on with the run, its tuning kept: the draws of one longer run.

        On as many devices they are equal bit for bit; on another number of devices but for rounding, since sums are
        taken in another order, and chains may part after many draws.

        Args:
            num_samples: iterations per chain to add.
            options: `until`, `on_block` and `progress`, as for `phx.mcmc`; of `until`, `seconds` count from here on.

        Returns:
            A posterior with the draws before and after; this one stays as it is.

        Raises:
            ValueError: when the posterior was read from a file, which holds no model:
                `phx.compile(...).continue_run(posterior, num_samples)` goes on with it.

        Example:
            >>> posterior.continue_run(500).num_draws  # doctest: +SKIP
            1500
        """
        if self.goes_on is None:
            raise ValueError("continue_run: this posterior was not made by a run, or by an earlier release.")
        return self.goes_on.continue_run(self, num_samples, **options)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the draws of one variable, `(chain, draw, ...)`."""
        if name not in self.draws:
            known = ", ".join(map(repr, self.draws)) or "none"
            raise UnknownVariable(
                f"posterior[{name!r}]: there is no variable {name!r} among the draws; they are: {known}."
                f"{hint(str(name), self.draws, self._not_kept)}"
            )
        return self.draws[name]

    def __contains__(self, name: object) -> bool:
        return name in self.draws

    def __iter__(self) -> Iterator[str]:
        return iter(self.draws)

    @property
    def _not_kept(self) -> list[str]:
        """Variables of the model whose draws were not kept."""
        known = self.record.latents if self.target is None else self.target.value_names()
        return [name for name in known if name not in self.draws]

    def to_dataframe(self) -> DataFrame:
        """Return the draws as a `pandas.DataFrame`: one row per draw, one column per scalar quantity.

        Returns:
            A table with the columns `chain` and `draw`, counted from 0, then one column per scalar element of each
            variable, under the names that the summary has for them: `mean`, `w[0]`, or `w[east]` where the data name
            the entries.

        Raises:
            ValueError: when there are no draws, or a variable is called `chain` or `draw`.

        Example:
            >>> list(posterior.to_dataframe().columns)  # doctest: +SKIP
            ['chain', 'draw', 'mean']
        """
        return draws_frame(self.draws, self.record.labels)

    def summary(self, names: Iterable[str] | None = None, prob: float = _PROB) -> SummaryTable:
        """Summarise every scalar element of every variable in one table; see `phalanx.diagnostics.summary_table`.

        Args:
            names: the variables wanted, in this order; None for all of them.
            prob: the share of the draws between `hdi_low` and `hdi_high`, the narrowest interval that has so many.

        Returns:
            A table with the columns mean, sd, hdi_low, hdi_high, mcse_mean, mcse_sd, ess_bulk, ess_tail and
            r_hat. Its first row is the log density of the draws. Rows are called `b`, `b[0]`, or
            `b[age]` where the data have names for the entries. The table of all variables ends with the verdict on the
            run, and has it as its attribute `verdict`. Of more than 40 quantities it prints the 40 that mixed worst.

        Raises:
            ValueError: when a name is unknown, there are no draws, or `prob` is not between 0 and 1.

        Example:
            >>> posterior.summary(["mean"]).loc["mean", "r_hat"] < 1.01  # doctest: +SKIP
            True
        """
        # Thousands of elements take seconds, and a report asks again after the user did.
        if names is not None:
            return self._summarize(names, prob)
        whole = self._summary_of_all if prob == _PROB else self._summarize(self.draws, prob)
        table = whole.copy()
        table.verdict, table.num_heads = self.verdict(), whole.num_heads
        return table

    def verdict(self, checks: Sequence[Check] = ()) -> Verdict:
        """Say whether the draws are good to use, or what is wrong and what to try; see `phalanx.diagnostics.judge`.

        Of a run that stored none, its reducers `rhat()` and `ess()` are asked.

        Args:
            checks: checks of yours on stored draws, after ours. Each is a function of the run's
                `phalanx.diagnostics.Evidence`, and returns a `Finding`, a sentence that says what is in order, or None.

        Returns:
            The verdict: `grade` ("good", "usable" or "not good"), `good`, `headline`, `findings` (each a problem and an
            advice, with its grade) and what was `passed`.

        Raises:
            ValueError: when there are no draws, stored or folded, or checks are given where no chain's are stored.

        Example:
            >>> posterior.verdict().good  # doctest: +SKIP
            True
        """
        record = self.record
        if checks and (record.independent or not self.num_draws):
            raise ValueError("verdict: checks= look at the stored draws of chains, and there are none.")
        if record.independent:
            return judged(record.findings, record.passed)
        if not self.stats and record.folded_draws:
            return judge_folded(
                self.reduced, record.tells, num_chains=self.num_chains, divergences=record.divergences,
                acceptance_rate=record.acceptance_rate, constant=record.constant, findings=record.findings,
                passed=record.passed, labels=record.labels,
            )  # fmt: skip
        if not self.stats:
            raise ValueError("verdict: there are no draws to judge, stored or folded.")
        table = self._summary_of_all if self.num_draws else None
        return judge(table, self.stats, record.findings, record.passed, self.draws, record.labels, checks)

    @cached_property
    def _summary_of_all(self) -> SummaryTable:
        return self._summarize(self.draws, _PROB)

    def _summarize(self, names: Iterable[str], prob: float) -> SummaryTable:
        return summarize(self.draws, self.stats, names, prob, self.record.labels, self._not_kept)

    def to_arviz(self) -> Any:
        """Convert to ArviZ's container, for its plots and comparisons; see `phalanx.diagnostics.to_arviz`.

        Returns:
            `arviz.InferenceData` with ArviZ 0.2x, `xarray.DataTree` with ArviZ 1.x: the groups `posterior` and
            `sample_stats` (acceptance_rate, diverging, n_steps, energy, step_size, lp; of NUTS also tree_depth and
            reached_max_treedepth).

        Raises:
            ImportError: when ArviZ is not installed.
            ValueError: when a variable has the name of one of ArviZ's dimensions.

        Example:
            >>> posterior.to_arviz().posterior["mean"].dims  # doctest: +SKIP
            ('chain', 'draw')
        """
        return to_arviz(self.draws, self.stats, self.record.labels)

    def predict(self, fn: Callable[..., Any], *, seed: int = 0, batch_size: int = 100) -> Any:
        """Evaluate a function of the variables at every draw.

        Args:
            fn: from a dict of one draw's values by name, to an array or any pytree of arrays. It is compiled by JAX. If
                it takes a second argument, it is given a key, another for every draw: `fn(draw, key)`.
            seed: a whole number. A draw's key depends on it, the chain and the draw, and on nothing else.
            batch_size: draws evaluated at a time, which bounds the memory taken on the device.

        Returns:
            What `fn` returns, each array with leading axes `(chain, draw)`.

        Raises:
            ValueError: when there are no draws, `fn` asks for a variable that was not kept, or returns nothing.
            TypeError: when `fn` is not a function or returns something other than arrays.

        Example:
            >>> posterior.predict(lambda values: values["mean"] ** 2).shape  # doctest: +SKIP
            (4, 1000)
        """
        check_seed(seed)
        return predict(fn, self.draws, seed=seed, batch_size=batch_size, not_kept=self._not_kept)

    def predictive(
        self,
        data: Mapping[str, Any] | None = None,
        kind: Literal["posterior", "prior"] = "posterior",
        *,
        model: Program | None = None,
        seed: int = 0,
    ) -> dict[str, np.ndarray]:
        r"""Draw what the model observes, anew for every draw: $y^* \sim p(y \mid \theta, x)$, $\theta$ a draw.

        The model is run again at each draw, on its own data or on others, in batches on the mesh; data that were placed
        with `phx.shard` stay where they are. Every observed variable is drawn, whether its data are given or not, and
        so is whatever the run did not infer; deterministic values are computed.

        Args:
            data: keyword arguments of the model; None for those of the run. Levels and columns are those of the run by
                their names, in any order. An argument that is only observed may be None, or left out if it has a
                default: its variable then has the shape of its distribution. Numbers, flags and words that are left out
                are the run's.
            kind: "posterior" takes what the run inferred from the draws; "prior" draws it from the prior.
            model: the program, when the posterior was read from a file, or another one with the same variables.
            seed: a whole number. A draw's noise depends on it, the chain and the draw, and on nothing else.

        Returns:
            Arrays of shape `(chain, draw, ...)` by variable: the observed and deterministic ones; with
            `kind="prior"` also those the run inferred.

        Raises:
            TypeError: when the data do not fit the model.
            ValueError: naming it, when a level is unknown, a column is missing, or data have no names where the run's
                had; naming the variable, when its draws were not kept, it has another shape on these data (it
                belongs to the rows of the run's), or it cannot be drawn from.

        Example:
            >>> posterior.predictive({"y": None})["y"].shape  # doctest: +SKIP
            (4, 1000)

        Source: A. Gelman, X.-L. Meng, H. Stern (1996), Posterior predictive assessment of model fitness via realized
        discrepancies.
        """
        check_seed(seed)
        draws = self.num_draws or (self.record.num_samples if kind == "prior" else 0)
        return predictive(
            model, data, kind, target=self.target, latents=tuple(self.record.latents), draws=self.draws,
            sizes=(self.num_chains, draws), seed=seed, known=self._known_data,
        )  # fmt: skip

    @property
    def _known_data(self) -> KnownData:
        """The state of the run's data that new data must agree with."""
        if self.target is None:
            return KnownData.of_record(self.record.names, self.record.scalars)
        return KnownData.of(self.target.arguments, self.record.names)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write everything to one file, or leave the file as it was.

        The file is an `.npz` archive of plain arrays with a JSON entry; it holds no pickles, so it is safe to load.
        Under a name that ends in `.nc` it is netCDF instead, for ArviZ, xarray, R and Julia: the draws and statistics
        of `to_arviz()`, without what `load` needs.

        Args:
            path: the file: `run.npz`, or without an ending; or `run.nc`. Its folder must exist.

        Returns:
            The path written.

        Raises:
            FileNotFoundError: when the folder is missing.
            ValueError: when `path` is a folder, or ends as files of another format do.
            ImportError: when ArviZ, or a package that writes netCDF, is not installed.
            TypeError: when `reduced` holds something other than arrays, numbers and strings in dicts, lists and tuples.

        Example:
            >>> posterior.save("run.npz")  # doctest: +SKIP
            PosixPath('run.npz')
        """
        file = file_to_save(path, "run.npz")
        if is_netcdf(file):
            return write_netcdf(file, self.to_arviz)
        state = None if self.goes_on is None else self.goes_on.saved()
        contents = {} if self.goes_on is None else dict(self.goes_on.contents())
        parts = {
            "draws": self.draws, "stats": self.stats, "reduced": self.reduced, "warmup": self.warmup, "state": state,
            "contents": contents,
        }  # fmt: skip
        return write_posterior(file, parts, self.timing, self.record)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Posterior:
        """Read a posterior that `save` wrote, bit for bit.

        Args:
            path: the file.

        Returns:
            The posterior. NamedTuples within `reduced` come back with their names and fields, as new classes.

        Raises:
            FileNotFoundError: when there is no such file.
            ValueError: when the file is something else, or is damaged.

        Example:
            >>> Posterior.load("run.npz")  # doctest: +SKIP
        """
        parts, timing, record = read_posterior(Path(path))
        goes_on = None if parts.get("state") is None else FromFile(parts["state"], parts.get("contents", {}))
        return cls(
            parts["draws"], parts["stats"], timing, record, parts["reduced"], parts.get("warmup", {}), goes_on=goes_on
        )

    def report(
        self, path: str | PathLike[str], *, figures: Mapping[str, Figure] | None = None, checks: Sequence[Check] = ()
    ) -> Path:
        """Write one self-contained HTML page: summary, plots, and what was run where.

        Args:
            path: the file to write; folders on the way are made.
            figures: matplotlib figures of yours, by title, after ours.
            checks: checks of yours, as for `verdict`.

        Returns:
            The path written.

        Raises:
            ValueError: when there are no draws, or `path` is a folder.
            ImportError: when matplotlib is not installed.

        Example:
            >>> posterior.report("report.html")  # doctest: +SKIP
            PosixPath('report.html')
        """
        return write_report(self, path, figures, checks)

    def __repr__(self) -> str:
        variables = ", ".join(f"{name}{list(value.shape[2:]) or ''}" for name, value in self.draws.items())
        draws = count(self.num_draws, "draw")
        if not self.num_draws and self.record.folded_draws:
            draws = count(self.record.folded_draws, "draw")
            variables = f"variables folded by {', '.join(self.reduced)}"
        facts = [
            f"{count(self.num_chains, 'chain')} x {draws} of {variables or 'no variables'}",
            count(self.num_divergences, "divergence"),
            f"{self.timing.total:.1f} s",
        ]
        return f"Posterior({'; '.join([*facts, 'interrupted'] if self.record.interrupted else facts)})"
