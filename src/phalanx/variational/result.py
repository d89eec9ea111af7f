"""A fit: the learned parameters, draws from the guide, and whether they are good to use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from jax import Array

from phalanx.diagnostics import Finding, Verdict
from phalanx.errors.names import hint
from phalanx.learning.compiled import Compiler
from phalanx.mesh.random_numbers import check_seed
from phalanx.posterior.display import as_html
from phalanx.posterior.file import Run, run_of, write_run
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord, Timing
from phalanx.reducers.reducer import Reduce, Reducer
from phalanx.report.page import file_to_write
from phalanx.store.archive import Kind, read_archive
from phalanx.store.pickles import LEFT_OUT, Pickled
from phalanx.store.save_path import file_to_save
from phalanx.variational.drawing import Drawing, on_host, only
from phalanx.variational.fit_posterior import posterior_of
from phalanx.variational.guides.guide_and_model import Pair, bound_name
from phalanx.variational.judging.evidence import Evidence
from phalanx.variational.judging.judge import judge_likelihood
from phalanx.variational.judging.linear_response import LinearResponse, covariance_of
from phalanx.variational.judging.resampling import Resampled
from phalanx.variational.judging.row_bounds import RowBounds, row_bounds
from phalanx.variational.judging.weighted_draws import JUDGE_SEED, WeightedDraws
from phalanx.variational.methods.settling import mean_and_sd
from phalanx.variational.methods.step import Losses
from phalanx.variational.monitoring.stream import check_all_there
from phalanx.variational.monitoring.watching import Look
from phalanx.variational.page import PageOfFit, shown_draws

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KIND = Kind("fit", "Fit.load", "phalanx.fit", (1,), ("params", "losses", "unsettled", "steps", "failed", "verdict"))
"""File format of a fit."""


class FitOutcome(NamedTuple):
    """Outcome of a method's steps.

    Attributes:
        free: the parameters, on the real line.
        last: those after the last step; None where they are the same.
        losses: the bound at each step.
        steps: steps made.
        gradients: gradients of the log density that were computed.
        failed, seen, looks, unsettled: as in `Fit`.
    """

    free: dict[str, Any]
    losses: Losses
    steps: int = 0
    gradients: int = 0
    failed: int = 0
    seen: int = 0
    looks: Sequence[Look] = ()
    unsettled: str = ""
    last: dict[str, Any] | None = None


@dataclass(frozen=True, repr=False, eq=False)
class Fit(Pickled):
    """Result of `phx.fit`: a guide, and a model, at the learned parameters.

    Attributes:
        params: values by parameter: averages over the last steps, or those of the last step without a guide.
        losses: the bound at each step, with its Monte-Carlo error.
        timing: seconds of compiling and of learning (`sampling`), gradients, programs compiled.
        record: model, guide, sizes, mesh, devices, data, versions.
        unsettled: why learning may not have ended; empty if it has.
        steps: steps made.
        failed: steps that were left out because their gradient was not finite.
        seen: number of the next batch, of data of `phx.batches`.
        looks: evaluations of a fit that was watched (`training=`): step, seconds, losses in nats per row and bits per
            dimension.
        last: values by parameter after the last step, with which `init=` this fit begins; None where `params` are.
        is_proposal: whether the guide is a proposal, whose draws are chosen by their weights (`phx.importance`).

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx, tempfile
        >>> def model(y):
        ...     phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 10.0)), 1.0), obs=y)
        >>> fit = phx.fit(model, phx.guides.full_rank(), {"y": jnp.arange(5.0)}, progress=False)
        >>> bool(fit.verdict().good)
        True
        >>> fit.sample(seed=0, n=100)["mean"].shape
        (100,)
        >>> fit.posterior(2000).draws["mean"].shape
        (1, 2000)
        >>> round(fit.evidence().log_evidence, 1)
        -12.7
        >>> file = fit.save(tempfile.mkdtemp() + "/fit.npz")
        >>> sorted(phx.Fit.load(file).params)
        ['loc', 'scale_tril']
        >>> fit.report(file.with_suffix(".html")).name
        'fit.html'
    """

    params: dict[str, Any]
    losses: Losses
    timing: Timing
    record: RunRecord
    unsettled: str = ""
    steps: int = 0
    failed: int = 0
    seen: int = 0
    looks: tuple[Look, ...] = ()
    free: dict[str, Any] | None = None
    pair: Pair | None = None
    arrays: tuple[Array, ...] = ()
    from_file: Mapping[str, Any] = field(default_factory=dict)
    is_proposal: bool = False
    last: dict[str, Any] | None = None

    of_process: ClassVar[dict[str, Any]] = {"pair": None, "arrays": ()}

    @property
    def settled(self) -> bool:
        """True if learning ended because the guide no longer changed."""
        return not self.unsettled

    def sample(self, seed: int = 0, n: int = 1000, *, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Draw from the guide.

        Args:
            seed: a whole number. It and the number of a draw alone determine the draw.
            n: number of draws.
            names: names of variables, also of deterministic ones of the model; None for all.

        Returns:
            Arrays of shape `(n, ...)` by variable.

        Raises:
            ValueError: when `n` is not a whole number above zero, a name is unknown, or the fit was read from a file.
        """
        check_seed(seed)
        check_number(n)
        available = self.proposals.names
        if unknown := [name for name in names or () if name not in available]:
            raise ValueError(
                f"sample: there is no variable {', '.join(map(repr, unknown))}; there are "
                f"{', '.join(map(repr, available))}.{hint(unknown, available)}"
            )
        batches = self._drawing.batches(seed, n)
        return on_host(batches if names is None else only(names, batches), n).values

    def posterior(
        self,
        n: int = 1000,
        *,
        seed: int = 0,
        keep: str | Sequence[str] | None = None,
        reducers: Mapping[str, Reducer | Reduce] | None = None,
    ) -> Posterior:
        """Return draws from the guide as a posterior. Variables that are not kept take no memory.

        Args:
            n: number of draws; they are independent, and make one chain.
            seed: a whole number.
            keep: names of the variables to store, or one name; None means all latent variables and, unless data came
                in batches, the deterministic ones of at most 10,000 elements; an empty list means none.
            reducers: reducers of the draws, by name, as for `phx.mcmc`.

        Returns:
            The posterior. Its statistics are `log_density`, under the model, and `log_weight`, the logarithm of the
            importance weight, zero if draws are chosen by their weights. Its verdict begins with the fit's findings.

        Raises:
            ValueError: when `n` or a name is wrong, or the fit was read from a file.
        """
        check_seed(seed)
        check_number(n)
        verdict = self.verdict()
        record = replace(self.record, num_samples=n, num_chains=1, seed=seed, independent=True)
        return posterior_of(self._drawing, record, self.timing, self.params, keep, reducers or {}, verdict)

    def evidence(self, *, seed: int = JUDGE_SEED, num_draws: int | None = None) -> Evidence:
        r"""Estimate $\log p(\text{data})$ by importance sampling with the guide as proposal.

        Args:
            seed: seed of the draws.
            num_draws: number of draws; None for as many as a verdict evaluates.

        Returns:
            The estimate with its standard error, the bound, and whether the weights can be trusted.

        Raises:
            ValueError: when the fit was read from a file, or its data came in batches.
        """
        check_seed(seed)
        if num_draws is not None:
            check_number(num_draws)
        return self._weighted_draws.evidence(seed, num_draws)

    def covariance(
        self, names: str | Sequence[str] | None = None, *, num_draws: int = 64, seed: int = 0
    ) -> LinearResponse:
        r"""Estimate the posterior's covariance by linear response: the change of the guide when the model is tilted.

        A mean-field guide has no covariances, and its variances are too small. But if $\log p$ is tilted by
        $t^\top g(x)$, the guide's mean of $g$ changes, and under the posterior its derivative by $t$ is the covariance:
        $G (-H)^{-1} G^\top$, with $H$ the Hessian of the bound by the guide's parameters, and $G$ the derivative of
        $E_q[g]$. For a normal posterior it is exact, as far as the guide's means are.

        Args:
            names: names of variables, also of deterministic ones, or one name; None for all latent variables.
            num_draws: draws that derivatives are averages over; at least three for each coordinate of the guide.
            seed: seed of the draws.

        Returns:
            The covariance of the elements, with their names. The model's own parameters are held fixed.

        Raises:
            ValueError: when a name is unknown or not of real numbers, the guide is learned without steps or has too
                many parameters, the bound has no maximum where learning ended, or the fit was read from a file.

        Example:
            >>> import numpyro.distributions as dist, phalanx as phx
            >>> def model():
            ...     x = phx.sample("x", dist.Normal(0.0, 1.0))
            ...     phx.sample("y", dist.Normal(x, 1.0))
            >>> fit = phx.fit(model, phx.guides.mean_field(), optimizer="lbfgs", progress=False)
            >>> fit.covariance().matrix.round(2).tolist()
            [[1.0, 1.0], [1.0, 2.0]]

        Source:
            Giordano, Broderick, Jordan (2018), Covariances, robustness, and variational Bayes.
        """
        check_seed(seed)
        check_number(num_draws)
        check_all_there(self.proposals.pair.problem, "covariance")
        return covariance_of(self.proposals, names, list(self.record.latents), num_draws, seed, self.record.labels)

    def row_bounds(self, data: Mapping[str, Any], num_draws: int = 5000, *, seed: int = 0) -> RowBounds:
        r"""Return bounds of the log likelihood of new rows, one by one, for models with latent variables by row.

        The importance-weighted bound of a row is $\log \frac1K \sum_k p(x, z_k) / q(z_k \mid x)$.

        Args:
            data: the model's arguments, arrays with one row for each example.
            num_draws: $K$. By maximum likelihood there are no draws, and the bounds are exact.
            seed: seed of the draws.

        Returns:
            The evidence lower bound and the importance-weighted one of each row, in nats.

        Raises:
            ValueError: when the fit used all rows at once, the guide was made from the model, or a latent variable is
                of all rows together.

        Example:
            >>> import numpy as np, numpyro.distributions as dist, phalanx as phx
            >>> def model(y):
            ...     phx.sample("y", dist.Normal(phx.param("mean", 0.0), 1.0), obs=y)
            >>> fit = phx.fit(model, None, {"y": np.zeros(8)}, batch_size=4, num_steps=10, progress=False)
            >>> fit.row_bounds({"y": np.zeros(2)}).elbo.shape
            (2,)

        Source:
            Burda, Grosse, Salakhutdinov (2016), Importance weighted autoencoders.
        """
        check_seed(seed)
        check_number(num_draws)
        return row_bounds(*self._live("to bound rows"), data, int(num_draws), seed, self.record.matmul_precision)

    def verdict(self, num_draws: int | None = None) -> Verdict:
        """Return whether the fit is good to use, or else the problems and the advice.

        Four things are checked: the tail of the importance weights; whether weighting the draws, or Markov moves of
        them, changes means and standard deviations; whether climbs from dispersed starts, or exchanges of elements,
        lead to a mode that the guide never draws from; and whether learning has ended.

        Args:
            num_draws: draws that are evaluated. None for 4,000; or for as many as have 134 million numbers, half a
                gigabyte, but at least 512.

        Returns:
            The verdict: `good`, `grade` ("good", "usable" or "not good"), `headline`, `findings` and `passed` checks.
        """
        if self.pair is None and "verdict" in self.from_file:
            return self.from_file["verdict"]
        if num_draws is not None:
            check_number(num_draws)
        end: dict[str, Any] = {"end_problem": self.unsettled, "steps": self.steps, "num_failed": self.failed}
        if self.pair and not self.pair.guide.traits.has_draws:
            return judge_likelihood(**end)
        return self._weighted_draws.verdict(num_draws, **end, is_resampled=self._is_resampled)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write everything but model and guide to one file, or leave the file as it was.

        Args:
            path: the file: `fit.npz`, or without an ending. Its folder must exist.

        Returns:
            The path written.

        Raises:
            FileNotFoundError: when the folder is missing.
            ValueError: when `path` is a folder, or ends as files of another format do.
        """
        of_draws = "netCDF holds draws: fit.posterior().save(...) writes some. Save the fit itself as .npz."
        file = file_to_save(path, "fit.npz", of_draws)
        verdict = self.verdict()
        findings = [tuple(finding) for finding in verdict.findings]
        checks_passed = list(verdict.passed)
        plain = {"good": verdict.good, "headline": verdict.headline, "findings": findings, "passed": checks_passed}
        parts = {
            "params": self.params,
            "losses": dict(self.losses._asdict()),
            "unsettled": self.unsettled,
            "steps": self.steps,
            "failed": self.failed,
            "seen": self.seen,
            "looks": self.looks,
            "verdict": plain,
            "last": self.last,
        }
        return write_run(file, _KIND, parts, self.timing, self.record)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Fit:
        """Read a fit that `save` wrote. It has no model: `phx.fit(model, guide, data, init=fit)` continues it.

        With `num_steps=0` the parameters stay as they are, and the result is a fit to draw from.

        Raises:
            FileNotFoundError: when the file does not exist.
            ValueError: when the file is not a fit, or is damaged.
        """
        parts, timing, record = read_archive(Path(path), _KIND, _run_of_fit)
        return cls(
            parts["params"],
            Losses(**parts["losses"]),
            timing,
            record,
            parts["unsettled"],
            parts["steps"],
            parts["failed"],
            parts.get("seen", 0),
            tuple(Look(*look) for look in parts.get("looks", ())),
            from_file={"verdict": parts["verdict"]},
            last=parts.get("last"),
        )

    def report(
        self,
        path: str | PathLike[str],
        *,
        names: str | Iterable[str] | None = None,
        beside: Posterior | None = None,
        figures: Mapping[str, Figure] | None = None,
    ) -> Path:
        """Write one self-contained HTML page: the verdict, variables, their summary, weights, and the bound by step.

        Args:
            path: the file to write; missing folders are made.
            names: variables to show, in this order, or one name; None for all. The verdict is on all.
            beside: a posterior, such as that of a run, drawn over the fit and compared with it in a table.
            figures: your matplotlib figures by title, placed after the built-in ones.

        Raises:
            ValueError: when `path` is a folder, a name is unknown, or `names` or `beside` is given for a fit that was
                read from a file. The page of such a fit has no draws.
            ImportError: when matplotlib is not installed.
        """
        file = file_to_write("report", path, "fit.html")
        page = PageOfFit(self.record, self.timing, self.steps, self.losses.elbo, self.verdict())
        if self.pair is not None:
            weighted_draws = self._weighted_draws.weighted()
            posterior = self.posterior(shown_draws(weighted_draws[1]))
            page = page._replace(posterior=posterior, judged=weighted_draws, evidence=self.evidence())
        return page.write(file, names, beside, figures or {})

    def starts(self, num_chains: int, seed: int) -> dict[str, np.ndarray]:
        """Return initial values of the chains of `phx.mcmc(..., init=fit)`: a draw from the guide for each chain."""
        latents = set(self.record.latents)
        return {name: value for name, value in self.sample(seed=seed, n=num_chains).items() if name in latents}

    @cached_property
    def proposals(self) -> Drawing:
        """The guide's own draws; an error if the fit was read from a file, or is of maximum likelihood."""
        pair, free = self._live("to draw from it")
        if not pair.guide.traits.has_draws:
            raise ValueError(
                "This fit is of maximum likelihood and has no guide to draw from: it has values, fit.params. Give the "
                "parameters priors (phx.sample, phx.random_network) and fit a guide, or run phx.mcmc."
            )
        return Drawing(pair, free, self.arrays, Compiler(self.record.matmul_precision, pair.problem.mesh))

    def _live(self, why: str) -> tuple[Pair, dict[str, Any]]:
        if self.pair is None or self.free is None:
            raise ValueError(
                f"This fit {LEFT_OUT} and no guide. Continue it, phx.fit(model, guide, "
                f"data, init=fit, num_steps=0), {why}."
            )
        return self.pair, self.free

    @cached_property
    def _drawing(self) -> Drawing | Resampled:
        """Draws for use: the guide's own, or chosen by their importance weights."""
        return Resampled(self.proposals) if self._is_resampled else self.proposals

    @property
    def _is_resampled(self) -> bool:
        return self.is_proposal or (self.pair is not None and self.pair.guide.traits.is_resampled)

    @cached_property
    def _weighted_draws(self) -> WeightedDraws:
        return WeightedDraws(self.proposals, tuple(self.record.latents), self.record.labels)

    def __repr__(self) -> str:
        names = ", ".join(f"{name}{list(np.shape(v)) or ''}" for name, v in self.params.items() if hasattr(v, "shape"))
        elbo = self.losses.elbo[-100:]
        bound = f"{bound_name(self.pair)} {mean_and_sd(elbo)[0]:,.2f}" if len(elbo) else "no steps"
        state = "settled" if self.settled else "not settled"
        return f"Fit({self.steps:,} steps of {self.record.kernel}; {bound}; {state}; {names})"

    def _repr_html_(self) -> str:
        facts = {"model": self.record.model, "guide": self.record.kernel, "steps": f"{self.steps:,}"}
        return as_html("Fit", {**facts, "settled": self.unsettled or "yes"}, self.params)


def check_number(n: object) -> None:
    """Raise unless `n` is a number of draws."""
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
        raise ValueError(f"The number of draws must be a whole number, at least 1; got {n!r}.")


def _run_of_fit(parts: dict[str, Any], entries: Mapping[str, Any]) -> Run:
    """Return what the file of a fit contains."""
    plain = parts["verdict"]
    findings = tuple(Finding(*finding) for finding in plain["findings"])
    verdict = Verdict(plain["good"], plain["headline"], findings, tuple(plain["passed"]))
    return run_of({**parts, "verdict": verdict}, entries)
