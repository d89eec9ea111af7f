"""Whether a fit is good to use, or what is wrong with it: weights, moments, and whether learning has ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.diagnostics import Finding, Verdict, judged
from phalanx.diagnostics.psis import threshold
from phalanx.diagnostics.words import count, first_few
from phalanx.variational.evidence import Weights

MEAN_OFF, SD_OFF = 0.1, 0.15
"""How far a mean may be off, in standard deviations, and a standard deviation, in parts of itself."""

FAILED = 0.01
"""The share of steps that may be left out for a gradient that is not finite."""


class Moment(NamedTuple):
    """A scalar element of a variable, under the guide and by weights of the model.

    Attributes:
        name: of the element.
        shift: difference of the means, in weighted standard deviations; and its standard error.
        error: that standard error.
        ratio: the guide's standard deviation as a part of the weighted one.
    """

    name: str
    shift: float
    error: float
    ratio: float


def moments(values: Mapping[str, np.ndarray], weights: np.ndarray, resampled: bool = False) -> Iterator[Moment]:
    """The moments of every element of draws `(draw, ...)`, under the guide and by self-normalised weights.

    Where draws are resampled by the weights, the guide's are the weighted ones, and the error is theirs.
    """
    for name, draws in values.items():
        flat = np.asarray(draws, np.float64).reshape(len(draws), -1)
        mean, weighted = flat.mean(0), weights @ flat
        sd = np.sqrt(weights @ (flat - weighted) ** 2)
        plain = flat.std(0)
        influence = weights[:, None] * (flat - weighted) - (flat - mean) / len(flat)
        if resampled:
            mean, plain, influence = weighted, sd, weights[:, None] * (flat - weighted)
        error = np.sqrt((influence**2).sum(0))
        for i, index in enumerate(np.ndindex(*draws.shape[1:])):
            if plain[i] > 1e-7 * abs(mean[i]) and sd[i] > 0.0:  # a constant is no quantity
                label = f"{name}[{', '.join(map(str, index))}]" if index else name
                yield Moment(label, (mean[i] - weighted[i]) / sd[i], error[i] / sd[i], plain[i] / sd[i])


def judge_fit(
    weights: Weights, values: Mapping[str, np.ndarray], *, settled: str, steps: int, failed: int,
    findings: Sequence[Finding] = (), resampled: bool = False,
) -> Verdict:  # fmt: skip
    r"""Say whether a fit is good to use, or what is wrong with it and what to try.

    It is good when the tail of its importance weights is light enough for the draws there are, when weighting the draws
    moves no mean by more than a tenth of a standard deviation (with two standard errors to spare) and changes no
    standard deviation by more than 15%, and when learning has ended.

    Args:
        weights: of draws from the guide.
        values: those draws, `(draw, ...)` by variable.
        settled: why learning has not ended; empty when it has.
        steps: steps made.
        failed: those left out because their gradient was not finite.
        findings: what is known to be wrong from elsewhere.
        resampled: whether draws for use are chosen by these weights; they then have the weighted moments, of which
            there is the Monte-Carlo error to look at.

    Source:
        Yao, Vehtari, Simpson, Gelman (2018), Yes, but did it work? Evaluating variational inference; Vehtari, Simpson,
        Gelman, Yao, Gabry (2024), Pareto smoothed importance sampling.
    """
    found: list[Finding] = list(findings)
    passed: list[str] = []
    looks = (
        _of_undefined(weights),
        _of_weights(weights),
        *_of_moments(weights, values, resampled),
        _of_end(settled),
        _of_failures(steps, failed),
    )
    for result in looks:
        if isinstance(result, Finding):
            found.append(result)
        else:
            passed.append(result)
    good = f"{_k_hat_words(weights)}, and weighting moves no mean and no standard deviation"
    return judged(found, [sentence for sentence in passed if sentence], good)


def judge_unweighed(*, settled: str, steps: int, failed: int, findings: Sequence[Finding] = ()) -> Verdict:
    """Say whether learning has ended, of a fit to rows that came in batches: there are no weights to look at."""
    unknown = Finding(
        "not weighed",
        "The rows came in batches, and the importance weights of draws, which need all of them, were not looked at.",
        "to fit to a part of the rows that fits in memory, and see whether that fit's verdict is good",
    )
    results = (*findings, unknown, _of_end(settled), _of_failures(steps, failed))
    found = [result for result in results if isinstance(result, Finding)]
    return judged(found, [result for result in results if isinstance(result, str) and result], "")


def judge_likelihood(*, settled: str, steps: int, failed: int) -> Verdict:
    """Say whether learning has ended, of a fit by maximum likelihood: there is no posterior to be near to."""
    results = (_of_end(settled), _of_failures(steps, failed))
    found = [result for result in results if isinstance(result, Finding)]
    passed = ["It is of maximum likelihood: values without a posterior, which nothing was compared with."]
    return judged(found, [*passed, *(r for r in results if isinstance(r, str) and r)], "")


def _of_undefined(weights: Weights) -> Finding | str:
    if not weights.undefined:
        return ""
    return Finding(
        "no number",
        f"The log density of {weights.undefined:,} of {count(len(weights.log), 'draw')} is not a number: what they "
        f"weigh is not known, and they were left out.",
        "a model that can be computed wherever the guide draws; jax.debug_nans says which operation it is",
    )


def _of_weights(weights: Weights) -> Finding | str:
    k_hat, bound, total = weights.smoothed.k_hat, threshold(len(weights.log)), len(weights.log)
    if k_hat <= bound:
        return f"Of the importance weights, {_k_hat_words(weights)}; up to {bound:.2f} they can be averaged."
    return Finding(
        "heavy weights",
        f"The importance weights of {count(total, 'draw')} have a tail of shape k-hat {k_hat:.2f}, above {bound:.2f}: "
        f"the guide is too far from the posterior for its draws to stand for it.",
        "a guide that can do more, such as phx.guides.full_rank() or phx.guides.flow(), another parameterisation of "
        "the model, or phx.mcmc with init= this fit",
    )


def _k_hat_words(weights: Weights) -> str:
    k_hat = weights.smoothed.k_hat
    return f"k-hat is {k_hat:.2f}" if np.isfinite(k_hat) else "the largest weights are all alike"


def _of_moments(weights: Weights, values: Mapping[str, np.ndarray], resampled: bool) -> list[Finding | str]:
    if not np.isfinite(weights.log.max()):
        return []
    found = list(moments(values, weights.normalized, resampled))
    # weights that can be relied on must show that a mean is right; of others only what is plain is said
    spare = 2.0 if weights.reliable else -2.0
    off = sorted((m for m in found if not abs(m.shift) + spare * m.error <= MEAN_OFF), key=lambda m: -abs(m.shift))
    wide = sorted((m for m in found if not abs(m.ratio - 1.0) <= SD_OFF), key=lambda m: -abs(np.log(m.ratio)))
    results: list[Finding | str] = []
    if off:
        results.append(
            Finding(
                "means off",
                f"Weighted by the model, {count(len(off), 'mean')} may move by more than {MEAN_OFF} standard "
                f"deviations: {first_few(off, lambda m: f'{m.name} by {-m.shift:.2f}±{m.error:.2f}')}.",
                "a guide that can do more, or more draws to judge by, fit.verdict(num_draws=...)",
            )
        )
    if wide:
        results.append(
            Finding(
                "scales off",
                f"The guide's standard deviations are not the posterior's: "
                f"{first_few(wide, lambda m: f'{m.name} has {m.ratio:.2f} of it')}.",
                "a guide that can do more; of correlations independent coordinates know nothing, and "
                "phx.guides.full_rank() does",
            )
        )
    return results or ["Weighted by the model, no mean and no standard deviation moves."]


def _of_end(settled: str) -> Finding | str:
    if not settled:
        return "The guide no longer changes."
    return Finding("not settled", settled, "a larger num_steps=, or to go on with init= this fit")


def _of_failures(steps: int, failed: int) -> Finding | str:
    if failed <= FAILED * steps:
        return ""
    were = "was" if failed == 1 else "were"
    return Finding(
        "failed steps",
        f"{failed:,} of {count(steps, 'step')} {were} left out, because the loss or its gradient was not finite.",
        "priors that keep the guide where the likelihood can be computed, or a smaller step size",
    )
