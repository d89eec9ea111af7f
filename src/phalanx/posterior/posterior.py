"""Posterior of a run: its draws, statistics and record, and the user's way to tables, predictions and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from phalanx.density.target import Target
from phalanx.diagnostics import Check, Verdict, to_arviz
from phalanx.errors.names import UnknownVariable, hint
from phalanx.language.tracing import Program
from phalanx.mesh.keys import check_seed
from phalanx.posterior.continuation import Continuation
from phalanx.posterior.file import write_posterior
from phalanx.posterior.judging import judge_run
from phalanx.posterior.predict import predict
from phalanx.posterior.predictive import known_data, predictive
from phalanx.posterior.record import RunRecord, Timing
from phalanx.posterior.run_folder import read_saved
from phalanx.posterior.shown import posterior_as_html, posterior_in_words
from phalanx.posterior.tables import draws_frame, summarize
from phalanx.report import write_report
from phalanx.store.save_path import file_to_save, is_netcdf, write_netcdf

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from phalanx.diagnostics.table import SummaryTable

_PROB = 0.94
"""Default fraction of the draws inside a summary's interval."""


@dataclass(frozen=True, repr=False, eq=False)
class Posterior:
    """Draws from a posterior, with the statistics of the sampler and the record of the run.

    Attributes:
        draws: arrays of shape `(chain, draw, ...)` by variable name.
        stats: arrays of shape `(chain, draw)`: acceptance_rate, diverging, num_steps, energy, step_size, log_density;
            of NUTS also tree_depth and reached_max_depth. Energy and log density are in float64.
        timing: seconds of each phase, and gradient evaluations.
        record: model, kernel, sizes, mesh, devices, data, versions.
        reduced: results of the reducers, by reducer name, and by variable where a reducer covers several.
        warmup: course of warm-up, arrays `(round,)`: iteration (mean draws of a chain at the end of the round),
            step_size (in use in the round), acceptance_rate, divergences, metric_changed (True if a new metric was in
            use after the round), relocated_chains; and trajectory_length if tuned. Empty if the run tuned no parameter.
        target: the model with its data; None if the posterior was read from a file.
        goes_on: continues the run; None for a posterior assembled by hand.

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
        """Stored draws of each chain: fewer than requested if the run was interrupted or thinned."""
        return self._sizes[1]

    @property
    def num_divergences(self) -> int:
        """Divergent draws over all chains."""
        return int(np.sum(self.stats["diverging"])) if "diverging" in self.stats else self.record.divergences

    @property
    def _sizes(self) -> tuple[int, int]:
        arrays = [*self.stats.values(), *self.draws.values()]
        return arrays[0].shape[:2] if arrays else (self.record.num_chains, 0)

    @cached_property
    def state(self) -> Any:
        """State of the run, from which it can continue: positions of the chains, tuning, reducer states.

        Raises:
            ValueError: if a run did not make the posterior.
        """
        if self.goes_on is None:
            raise ValueError("state: this posterior was not made by a run, or by an earlier release.")
        return self.goes_on.state()

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
        """Variables of the model without stored draws."""
        known = self.record.latents if self.target is None else self.target.value_names()
        return [name for name in known if name not in self.draws]

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

    def summary(self, names: Iterable[str] | None = None, prob: float = _PROB) -> SummaryTable:
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
        # Cached: thousands of elements take seconds, and a report asks again.
        if names is not None:
            return self._summarize(names, prob)
        whole = self._summary_of_all if prob == _PROB else self._summarize(self.draws, prob)
        table = whole.copy()
        table.verdict, table.num_heads = self.verdict(), whole.num_heads
        return table

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
            ValueError: if there are no draws, stored or folded, or `checks` are given without stored draws of chains.

        Example:
            >>> posterior.verdict().good  # doctest: +SKIP
            True
        """
        return judge_run(
            self.record, self.draws, self.stats, self.reduced, self._sizes, lambda: self._summary_of_all, checks
        )

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
            ImportError: if ArviZ is not installed.
            ValueError: if a variable has the name of one of ArviZ's dimensions.

        Example:
            >>> posterior.to_arviz().posterior["mean"].dims  # doctest: +SKIP
            ('chain', 'draw')
        """
        return to_arviz(self.draws, self.stats, self.record.labels)

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
        return predict(fn, self.draws, seed=seed, batch_size=batch_size, not_kept=self._not_kept)

    def predictive(
        self,
        data: Mapping[str, Any] | None = None,
        kind: Literal["posterior", "prior"] = "posterior",
        *,
        model: Program | None = None,
        seed: int = 0,
    ) -> dict[str, np.ndarray]:
        r"""Sample the observed variables anew at every draw: $y^* \sim p(y \mid \theta, x)$ with $\theta$ a draw.

        The model runs again at each draw, on its own data or on others, in batches on the mesh; data that were placed
        with `phx.shard` stay in place. Every observed variable is sampled, with or without its data, and so is every
        variable that the run did not infer; deterministic values are computed.

        Args:
            data: keyword arguments of the model; None for those of the run. Levels and columns match those of the run
                by name, in any order. An argument that is only observed may be None, or left out if it has a default:
                its variable then has the shape of its distribution. Numbers, flags and words that are left out are the
                run's.
            kind: "posterior" takes the inferred variables from the draws; "prior" samples them from the prior.
            model: the program, if the posterior was read from a file; or another one with the same variables.
            seed: a whole number. The noise of a draw depends only on the seed, the chain and the draw.

        Returns:
            Arrays of shape `(chain, draw, ...)` by variable: the observed and deterministic ones; with
            `kind="prior"` also the inferred ones.

        Raises:
            TypeError: if the data do not fit the model.
            ValueError: if a level is unknown, a column is missing, or data lack the names that the run's data had; or
                if the draws of a variable were not kept, its shape differs on these data (it belongs to the rows of
                the run), or it cannot be sampled. The message names it.

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
            sizes=(self.num_chains, draws), seed=seed, known=known_data(self.target, self.record),
        )  # fmt: skip

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the posterior to one file; an error leaves an existing file unchanged.

        The file is an `.npz` archive of plain arrays with a JSON entry; it holds no pickles, so it is safe to load.
        With the ending `.nc` it is netCDF instead, for ArviZ, xarray, R and Julia: the draws and statistics of
        `to_arviz()`, which `load` does not read.

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
        if is_netcdf(file):
            return write_netcdf(file, self.to_arviz)
        parts = {"draws": self.draws, "stats": self.stats, "reduced": self.reduced, "warmup": self.warmup}
        return write_posterior(file, parts, self.timing, self.record, self.goes_on)

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
        (parts, timing, record), goes_on = read_saved(Path(path))
        reduced, warmup = parts["reduced"], parts.get("warmup", {})
        return cls(parts["draws"], parts["stats"], timing, record, reduced, warmup, goes_on=goes_on)

    def report(
        self, path: str | PathLike[str], *, figures: Mapping[str, Figure] | None = None, checks: Sequence[Check] = ()
    ) -> Path:
        """Write one self-contained HTML page: verdict, summary, plots, and the record of the run.

        Args:
            path: the file to write; missing folders are made.
            figures: your matplotlib figures by title, placed after the built-in ones.
            checks: your checks, as for `verdict`.

        Returns:
            The path written.

        Raises:
            ValueError: if there are no draws, or `path` is a folder.
            ImportError: if matplotlib is not installed.

        Example:
            >>> posterior.report("report.html")  # doctest: +SKIP
            PosixPath('report.html')
        """
        return write_report(self, path, figures, checks)

    def __repr__(self) -> str:
        return posterior_in_words(self)

    def _repr_html_(self) -> str:
        return posterior_as_html(self)
