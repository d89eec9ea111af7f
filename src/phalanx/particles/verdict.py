"""Findings on a run of particles: what its weights, ancestors and moves show, and in which cases they show nothing."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from phalanx.diagnostics import Finding
from phalanx.errors.message_text import count
from phalanx.particles.pool import effective_number
from phalanx.particles.stages import NOISE, SATURATED, Stages

FEW, VERY_FEW = 30.0, 10.0
"""Effective ancestors below which the error of the evidence is rough, and below which it means nothing."""

SIGNIFICANT = 4.0
"""Standard errors from which on a drift in the moves is not chance."""

SLIGHT = 0.1
"""Nats that a drift may change the evidence by without a finding."""

LOW_ACCEPTANCE = 0.1
"""Mean acceptance rate of a temperature's moves below which particles hardly move."""

UNSEEN = (
    "Particles reveal only modes that some draws from the prior led to. A mode that all of them missed is missing from "
    "the draws and from the evidence, and no check of one run can reveal it."
)
"""Limit of the method, which every verdict states."""


class Judged(NamedTuple):
    """Findings, sentences on what is in order, and the error of the log evidence in nats."""

    findings: tuple[Finding, ...]
    passed: tuple[str, ...]
    error: float


def judge_stages(stages: Stages) -> Judged:
    """Judge a run of particles that has reached the posterior."""
    assert stages.weighted is not None
    error = math.sqrt(float(np.sum(np.square(stages.weighted.at.influence))))
    drifted = _drift(stages)
    results = [_ancestors(stages), drifted, *_moves(stages), _judge_undefined(stages)]
    findings = tuple(result for result in results if isinstance(result, Finding))
    passed_checks = tuple(result for result in results if isinstance(result, str))
    if isinstance(drifted, Finding):
        error = math.hypot(error, stages.gap)
    return Judged(findings, (*passed_checks, UNSEEN), error)


def _ancestors(stages: Stages) -> Finding | str:
    assert stages.weighted is not None
    effective = effective_number(stages.weighted.of_ancestors)
    if effective >= FEW:
        return f"The particles descend from {effective:,.0f} effective draws from the prior."
    return Finding(
        "few ancestors",
        f"The particles descend from {effective:.1f} effective draws from the prior, and the error of the evidence is "
        f"estimated from the differences of these.",
        "a larger num_particles, in proportion; or a higher target_ess, such as 0.9",
        grade="not good" if effective < VERY_FEW else "usable",
    )


def _drift(stages: Stages) -> Finding | str:
    error = math.sqrt(float(np.sum(np.square(stages.gap_influence))))
    if abs(stages.gap) < max(SIGNIFICANT * error, SLIGHT):
        return f"The moves left the log likelihood as it was, to {max(abs(stages.gap), error):.2g} nats of evidence."
    return Finding(
        "lagging particles",
        f"The moves at fixed temperatures changed the mean log likelihood, by about {stages.gap:+.2g} nats of evidence "
        f"in all: particles lag behind their temperature, as at a first-order transition, where another region takes "
        f"over at once and few particles find it.",
        "a larger num_particles, num_moves=, or target_ess, such as 0.9; if the drift stays, a kernel that moves "
        "farther, or another parametrisation of the prior",
    )


def _moves(stages: Stages) -> list[Finding | str]:
    record = stages.record
    results = []
    change = np.array(record["change"])
    rates = np.array(record["acceptance_rate"])
    limit = SATURATED + NOISE / math.sqrt(stages.programs.blocks.num_chains)
    short = (change > limit) & np.isfinite(change)
    still = np.isinf(change) & (np.array(record["moves"]) > 1)
    if short.any() or still.any():
        results.append(
            Finding(
                "short moves",
                f"At {count(int((short | still).sum()), 'temperature')} of {len(change)}, the distance of particles "
                f"from where they began still changed after {int(max(record['moves']))} draws of the kernel.",
                "a larger num_moves, or a kernel that moves farther, such as phx.nuts()",
                grade="usable",
            )
        )
    else:
        results.append("At every temperature particles moved as far as the kernel takes them.")
    if np.nanmin(rates, initial=1.0) < LOW_ACCEPTANCE:
        results.append(
            Finding(
                "low acceptance",
                f"At one temperature, {np.nanmin(rates):.0%} of the proposals were accepted.",
                "a smaller step_size, or one that is tuned (step_size=None)",
                grade="usable",
            )
        )
    return results


def _judge_undefined(stages: Stages) -> Finding | None:
    if not stages.undefined:
        return None
    return Finding(
        "no number",
        f"The log likelihood is not a number at {count(stages.undefined, 'draw')} from the prior, of weight zero.",
        "priors, or a likelihood, without overflow",
        grade="usable",
    )
