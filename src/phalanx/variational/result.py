"""A fit: what was learned, draws from it, and whether they are good to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.diagnostics import Verdict
from phalanx.errors.names import hint
from phalanx.mesh.keys import check_seed
from phalanx.posterior.posterior import Posterior
from phalanx.reducers.reducer import Reduce, Reducer
from phalanx.store.save_path import file_to_save
from phalanx.variational.fit_file import read_fit, write_fit
from phalanx.variational.fitted import Fitted, Losses
from phalanx.variational.guides.likelihood import bound_of
from phalanx.variational.judging.evidence import Evidence
from phalanx.variational.judging.judge import judge_fit, judge_likelihood, judge_unweighed
from phalanx.variational.judging.linear_response import Covariance, covariance_of
from phalanx.variational.judging.row_bounds import RowBounds, row_bounds
from phalanx.variational.judging.weighed_draws import JUDGE_SEED, JUDGED
from phalanx.variational.monitoring.stream import check_all_there
from phalanx.variational.monitoring.watching import Look
from phalanx.variational.page import write_page
from phalanx.variational.sinks import posterior_of


@dataclass(frozen=True, repr=False, eq=False)
class Fit(Fitted):
    """What a guide, and a model, have learned.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 10.0))
        ...     phx.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> fit = phx.fit(model, phx.guides.full_rank(), {"y": jnp.arange(5.0)}, progress=False)
        >>> bool(fit.verdict().good)
        True
    """

    def sample(self, seed: int = 0, n: int = 1000, *, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Draw from the guide.

        Args:
            seed: a whole number. A draw depends on it and on its number alone.
            n: how many draws.
            names: the variables wanted, deterministic ones of the model included; None for all.

        Returns:
            Arrays of shape `(n, ...)` by variable.

        Raises:
            ValueError: when `n` is no whole number above zero, a name is unknown, or the fit was read from a file.

        Example:
            >>> fit.sample(0, 100)["mean"].shape  # doctest: +SKIP
            (100,)
        """
        check_seed(seed)
        _check_number(n)
        known = self.drawing.names
        if unknown := [name for name in names or () if name not in known]:
            raise ValueError(
                f"sample: there is no variable {', '.join(map(repr, unknown))}; there are "
                f"{', '.join(map(repr, known))}.{hint(unknown, known)}"
            )
        return self.drawing.draw(seed, n, names).values

    def posterior(
        self,
        n: int = 1000,
        *,
        seed: int = 0,
        keep: str | Sequence[str] | None = None,
        reducers: Mapping[str, Reducer | Reduce] | None = None,
    ) -> Posterior:
        """Draws from the guide as a posterior, with all that one can do.

        Draws come in batches: what is not kept takes no memory.

        Args:
            n: how many draws; they are independent, and make one chain.
            seed: a whole number.
            keep: names of the variables to store, or one name; None means all latent variables and, unless data came
                in batches, the deterministic ones of at most 10,000 elements; an empty list means none.
            reducers: what is learned from the draws while they are made, as for `phx.mcmc`.

        Returns:
            The posterior. Its statistics are `log_density`, under the model, and `log_weight`, the logarithm of the
            importance weight, zero where draws have been chosen by their weights. Its verdict begins with what is wrong
            with the fit.

        Raises:
            ValueError: when `n` or a name is wrong, or the fit was read from a file.

        Example:
            >>> fit.posterior(2000).summary()  # doctest: +SKIP
        """
        check_seed(seed)
        _check_number(n)
        return posterior_of(self, n, seed, keep, reducers or {}, self.verdict())

    def evidence(self, seed: int = JUDGE_SEED, num_draws: int = JUDGED) -> Evidence:
        r"""Estimate $\log p(\text{data})$ by importance sampling with the guide as proposal.

        Args:
            seed: of the draws.
            num_draws: how many.

        Returns:
            The estimate with its standard error, the bound, and whether the weights can be trusted.

        Raises:
            ValueError: when the fit was read from a file, or its data came in batches.

        Example:
            >>> evidence = fit.evidence()  # doctest: +SKIP
            >>> evidence.log_evidence, evidence.error  # doctest: +SKIP
        """
        check_seed(seed)
        _check_number(num_draws)
        return self._weighed_draws.evidence(seed, num_draws)

    def covariance(self, names: str | Sequence[str] | None = None, *, num_draws: int = 64, seed: int = 0) -> Covariance:
        r"""Estimate the posterior's covariance by linear response: how the guide follows a tilted model.

        Independent coordinates have no covariances, and variances that are too small. But where $\log p$ is tilted by
        $t^\top g(x)$, the mean of $g$ under the guide follows, and under the posterior its derivative by $t$ is the
        covariance: $G (-H)^{-1} G^\top$, with $H$ the Hessian of the bound by the guide's parameters, and $G$ the
        derivative of $E_q[g]$. Of a normal posterior it is exact, as far as the guide's means are.

        Args:
            names: the variables wanted, deterministic ones included, or one name; None for all latent variables.
            num_draws: draws that derivatives are averages over; at least three for each coordinate of the guide.
            seed: of the draws.

        Returns:
            The covariance of the elements, one after the other, with their names. The model's own parameters are held.

        Raises:
            ValueError: when a name is unknown or not of real numbers, the guide is learned by no steps or has too many
                parameters, the bound has no top where learning ended, or the fit was read from a file.

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
        _check_number(num_draws)
        check_all_there(self.proposals.pair.problem, "covariance")
        return covariance_of(self.proposals, names, list(self.record.latents), num_draws, seed)

    def row_bounds(self, data: Mapping[str, Any], num_draws: int = 5000, *, seed: int = 0) -> RowBounds:
        r"""Bounds of the log likelihood of new rows, one by one: how good a model with latent variables by row is.

        The importance-weighted bound of a row is $\log \frac1K \sum_k p(x, z_k) / q(z_k \mid x)$.

        Args:
            data: the model's arguments, arrays with one row for each example.
            num_draws: $K$. By maximum likelihood there is nothing to draw, and the bounds are exact.
            seed: of the draws.

        Returns:
            The evidence lower bound and the importance-weighted one of each row, in nats.

        Raises:
            ValueError: when the fit saw all rows at once, the guide was made from the model, or a latent variable is
                of all rows together.

        Example:
            >>> fit.row_bounds({"x": test_images}).importance_weighted.mean()  # doctest: +SKIP

        Source:
            Burda, Grosse, Salakhutdinov (2016), Importance weighted autoencoders.
        """
        check_seed(seed)
        _check_number(num_draws)
        return row_bounds(self, data, int(num_draws), seed)

    def verdict(self, num_draws: int = JUDGED) -> Verdict:
        """Say whether the fit is good to use, or what is wrong with it and what to try.

        Four things are evaluated: the tail of the importance weights; whether weighting the draws, or Markov moves of
        them, changes means and standard deviations; whether climbs from dispersed starts, or exchanges of elements,
        lead to a mode that the guide never draws from; and whether learning has ended. See
        `phalanx.variational.judging.judge.judge_fit`.

        Args:
            num_draws: draws that are looked at.

        Returns:
            The verdict: `good`, `grade` ("good", "usable" or "not good"), `headline`, `findings` (each a problem and an
            advice) and what was `passed`.

        Example:
            >>> fit.verdict().good  # doctest: +SKIP
            True
        """
        if self.pair is None and "verdict" in self.known:
            return self.known["verdict"]
        _check_number(num_draws)
        if self.pair is not None and not self.pair.has_draws:
            return judge_likelihood(settled=self.unsettled, steps=self.steps, failed=self.failed)
        if self.is_streamed:
            return judge_unweighed(
                settled=self.unsettled, steps=self.steps, failed=self.failed, findings=self.proposals.pair.left_out
            )
        draws, which = self._weighed_draws, (JUDGE_SEED, num_draws)
        weights, values = draws.weighed(*which)
        return judge_fit(
            weights, values, settled=self.unsettled, steps=self.steps, failed=self.failed, resampled=self.is_resampled,
            findings=self.proposals.pair.left_out,
            moves=partial(draws.moved, *which) if draws.can_move else None, search=partial(draws.searched, *which),
        )  # fmt: skip

    def save(self, path: str | PathLike[str]) -> Path:
        """Write everything but model and guide to one file, or leave the file as it was.

        Args:
            path: the file: `fit.npz`, or without an ending. Its folder must exist.

        Returns:
            The path written.

        Raises:
            FileNotFoundError: when the folder is missing.
            ValueError: when `path` is a folder, or ends as files of another format do.

        Example:
            >>> fit.save("fit.npz")  # doctest: +SKIP
        """
        of_draws = "netCDF holds draws: fit.posterior().save(...) writes some. Save the fit itself as .npz."
        file = file_to_save(path, "fit.npz", of_draws)
        parts = {
            "params": self.params, "losses": dict(self.losses._asdict()), "unsettled": self.unsettled,
            "steps": self.steps, "failed": self.failed, "seen": self.seen, "looks": self.looks,
            "verdict": self.verdict(),
        }  # fmt: skip
        return write_fit(file, parts, self.timing, self.record)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Fit:
        """Read a fit that `save` wrote. It has no model: `phx.fit(model, guide, data, init=fit)` goes on with it.

        With `num_steps=0` that learns nothing, and gives a fit to draw from.

        Raises:
            FileNotFoundError: when there is no such file.
            ValueError: when the file is something else, or is damaged.

        Example:
            >>> phx.Fit.load("fit.npz").params  # doctest: +SKIP
        """
        parts, timing, record = read_fit(Path(path))
        losses = Losses(**parts["losses"])
        known = {"verdict": parts["verdict"]}
        return cls(
            parts["params"], losses, timing, record, parts["unsettled"], parts["steps"], parts["failed"],
            parts.get("seen", 0), tuple(Look(*look) for look in parts.get("looks", ())), known=known,
        )  # fmt: skip

    def report(self, path: str | PathLike[str]) -> Path:
        """Write one self-contained HTML page: the verdict, the bound with its running mean, weights, marginals.

        Args:
            path: the file to write; folders on the way are made.

        Returns:
            The path written.

        Raises:
            ValueError: when `path` is a folder, or the fit was read from a file.
            ImportError: when matplotlib is not installed.

        Example:
            >>> fit.report("fit.html")  # doctest: +SKIP
        """
        return write_page(self, path, self.verdict(), self.evidence())

    def starts(self, num_chains: int, seed: int) -> dict[str, np.ndarray]:
        """Where chains of `phx.mcmc(..., init=fit)` begin: a draw from the guide for each, `(chain, ...)`."""
        latents = set(self.record.latents)
        return {name: value for name, value in self.sample(seed, num_chains).items() if name in latents}

    def __repr__(self) -> str:
        names = ", ".join(f"{name}{list(np.shape(v)) or ''}" for name, v in self.params.items() if hasattr(v, "shape"))
        elbo = self.losses.elbo[-100:]
        bound = f"{bound_of(self.pair)} {np.nanmean(elbo):,.2f}" if len(elbo) else "no steps"
        state = "settled" if self.settled else "not settled"
        return f"Fit({self.steps:,} steps of {self.record.kernel}; {bound}; {state}; {names})"


def _check_number(n: Any) -> None:
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
        raise ValueError(f"The number of draws must be a whole number, at least 1; got {n!r}.")
