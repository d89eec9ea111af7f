"""Methods of a posterior that evaluate functions, or the model itself, at its draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import jax
import numpy as np

from phalanx.density.target import Target
from phalanx.inputs.dataframe_input import UserData
from phalanx.language.tracing import Program
from phalanx.mesh.agreement import check_same
from phalanx.mesh.keys import check_seed
from phalanx.posterior.criticism.log_likelihood import log_likelihood
from phalanx.posterior.criticism.loo import Loo, leave_one_out
from phalanx.posterior.criticism.model_at_draws import known_data
from phalanx.posterior.criticism.reduced_results import ValuesAtDraws
from phalanx.posterior.predict import predict
from phalanx.posterior.predictive import PredictiveDraws, check_kind, chosen, predictive
from phalanx.posterior.processes.together import OwnDraws, on_all_chains
from phalanx.posterior.record import RunRecord
from phalanx.reducers.reducer import Reduce, Reducer


class Evaluations:
    """Part of `Posterior`: draws, and what can be computed from the model at each of them."""

    draws: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]
    record: RunRecord
    reduced: dict[str, Any]
    target: Target | None
    own: OwnDraws | None

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
        return chains if self.own is None else self.own.held.num_chains, draws

    @property
    def _not_kept(self) -> list[str]:
        """Variables of the model without stored draws."""
        known = self.record.latents if self.target is None else self.target.value_names()
        return [name for name in known if name not in self.draws]

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
        if self.own is None:
            return predict(fn, self.draws, seed=seed, batch_size=batch_size, not_kept=self._not_kept)
        check_same("posterior.predict", lambda: {"seed": str(seed)})
        held, not_kept = self.own.held, self._not_kept
        found = predict(
            fn, self.draws, seed=seed, batch_size=batch_size, not_kept=not_kept, chains=held.numbers
        )  # fmt: skip
        return jax.tree.map(held.gathered, found)

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
        return predictive(
            model, data, kind, target=self.target, latents=tuple(self.record.latents), draws=self.draws,
            sizes=(self.num_chains, len(numbers)), seed=seed, given=given, known=known_data(self.target, self.record),
            observed=self.record.observed, of_run=self.record.axes, numbers=numbers, keep=keep, reducers=reducers,
        )  # fmt: skip

    @on_all_chains
    def log_likelihood(
        self, data: UserData | None = None, *, keep: str | Sequence[str] | None = None,
        reducers: Mapping[str, Reducer | Reduce] | None = None, model: Program | None = None,
    ) -> ValuesAtDraws:  # fmt: skip
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
        return log_likelihood(
            model, data, target=self.target, latents=tuple(self.record.latents), draws=self.draws, sizes=self._sizes,
            known=known_data(self.target, self.record), keep=keep, reducers=reducers,
        )  # fmt: skip

    @on_all_chains
    def loo(self, data: UserData | None = None, *, model: Program | None = None) -> Loo:
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
            model: the program, if the posterior was read from a file.

        Returns:
            A `Loo`: elpd, se, p_loo, pointwise, pareto_k, num_bad, good, and printed with a verdict.

        Raises:
            ValueError: if the model observes no variable (its likelihood is a `phx.factor`), a log density is scaled,
                or there are neither draws nor results of `phx.reducers.loo()`.

        Example:
            >>> posterior.loo().good  # doctest: +SKIP
            True

        Source: A. Vehtari, A. Gelman, J. Gabry (2017), Practical Bayesian model evaluation using leave-one-out
        cross-validation and WAIC.
        """
        found = leave_one_out(
            model, data, target=self.target, latents=tuple(self.record.latents), draws=self.draws, sizes=self._sizes,
            known=known_data(self.target, self.record), reduced=self.reduced,
            log_weights=self.stats.get("log_weight"),
        )  # fmt: skip
        labels = {name: self.record.axes.labels_of(name, values.shape) for name, values in found.pareto_k.items()}
        return replace(found, labels=labels)
