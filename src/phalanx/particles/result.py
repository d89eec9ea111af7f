"""Result of sequential Monte Carlo: draws of the posterior, the evidence, and the course of the temperatures."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from phalanx.density.target import Target
from phalanx.diagnostics import Verdict, judged
from phalanx.posterior.display import as_html
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord, Timing
from phalanx.store.pickles import Pickled

if TYPE_CHECKING:
    from phalanx.diagnostics.table import SummaryTable


class LogEvidence(NamedTuple):
    r"""An estimate of $\log p(\text{data})$.

    Attributes:
        log_evidence: the estimate.
        error: its standard error; with the drift of the moves, if that is a finding.
        reliable: whether the verdict has no finding that is "not good".
        num_particles: number of particles.
    """

    log_evidence: float
    error: float
    reliable: bool
    num_particles: int


@dataclass(frozen=True, repr=False, eq=False)
class Particles(Pickled):
    """Result of `phx.smc`: particles of the posterior, and the evidence.

    Attributes:
        draws: arrays `(particle, ...)` by variable, with equal weights.
        stages: the course of the temperatures, arrays `(temperature,)`: temperature (the power of the likelihood),
            log_evidence, ess (effective particles before they were resampled), ancestors (effective number of draws
            from the prior that they descend from), moves (draws of the kernel), acceptance_rate, step_size,
            divergences, and change (the largest factor by which the squared distance from the start changed in the
            last third of the moves, over coordinates: near 1 where particles have forgotten their start).
        error: standard error of the log evidence.
        record: model, kernel, sizes, mesh, devices, data, versions.
        timing: seconds of compiling and of the run (`sampling`), gradient evaluations, programs compiled.
        target: the model with its data.

    Example:
        >>> import numpy as np, numpyro.distributions as dist, phalanx as phx
        >>> def coin(heads):
        ...     p = phx.sample("p", dist.Beta(2.0, 2.0))
        ...     phx.sample("heads", dist.Binomial(10, p), obs=heads)
        >>> particles = phx.smc(coin, {"heads": np.array(9.0)}, num_particles=512, progress=False)
        >>> float(particles.temperatures[-1])
        1.0
        >>> particles.posterior().draws["p"].shape
        (1, 512)
    """

    draws: dict[str, np.ndarray]
    stages: dict[str, np.ndarray]
    error: float
    record: RunRecord
    timing: Timing
    stats: dict[str, np.ndarray] = field(default_factory=dict)
    target: Target | None = None

    of_process: ClassVar[dict[str, Any]] = {"target": None}

    @property
    def temperatures(self) -> np.ndarray:
        """Powers of the likelihood, from that of the prior, 0, to that of the posterior, 1."""
        return np.concatenate([[0.0], self.stages["temperature"]])

    def posterior(self) -> Posterior:
        """Return the particles as a posterior: one chain, in which relatives are neighbours.

        Its effective sample sizes therefore count relatives that have not moved apart less. Its verdict is that of the
        particles.

        Returns:
            The posterior, with everything that draws of chains offer: `summary()`, `to_arviz()`, `report()`,
            `predictive()`, `save()`.
        """
        draws, stats = ({name: x[None] for name, x in part.items()} for part in (self.draws, self.stats))
        return Posterior(draws, stats, self.timing, self.record, target=self.target)

    def summary(self, **options: Any) -> SummaryTable:
        """Return the table of `posterior().summary()`.

        Args:
            options: `names` and `prob`, as for that.
        """
        return self._posterior.summary(**options)

    def evidence(self) -> LogEvidence:
        r"""Return the estimate of $\log p(\text{data})$ with its standard error."""
        reliable = all(finding.grade == "usable" for finding in self.record.findings)
        value = float(self.stages["log_evidence"][-1])
        return LogEvidence(value, self.error, reliable, self.record.num_samples)

    def verdict(self) -> Verdict:
        """Return whether the particles are good to use, or else the problems and the advice.

        Three things are checked: the number of draws from the prior that the particles descend from; whether moves at
        a fixed temperature change the log likelihood, as they do where particles lag behind their temperature; and
        whether the moves were long enough.

        Returns:
            The verdict: `good`, `grade` ("good", "usable" or "not good"), `headline`, `findings` and `passed` checks.
        """
        return judged(self.record.problems, self.record.passed)

    @cached_property
    def _posterior(self) -> Posterior:
        return self.posterior()

    def __repr__(self) -> str:
        evidence = self.evidence()
        names = ", ".join(self.draws)
        return (
            f"Particles({evidence.num_particles:,} of {self.record.model}; {len(self.temperatures)} temperatures; "
            f"log evidence {evidence.log_evidence:,.2f} ± {evidence.error:.2g}; {names})"
        )

    def _repr_html_(self) -> str:
        evidence = self.evidence()
        facts = {
            "model": self.record.model,
            "kernel": self.record.kernel,
            "temperatures": f"{len(self.temperatures)}",
            "log evidence": f"{evidence.log_evidence:,.2f} ± {evidence.error:.2g}",
        }
        return as_html("Particles", facts, self.draws)
