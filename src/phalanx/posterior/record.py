"""What was run, where, and how long it took: the part of a posterior that is not draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.adaptation.stuck_chains import Relocation
from phalanx.diagnostics import Finding
from phalanx.diagnostics.elements import Names
from phalanx.errors.words import count, first_few
from phalanx.exactness.sharding_check import ADVICE, RowsApart
from phalanx.inputs.known_data import Names as NamesOfData


@dataclass(frozen=True)
class Timing:
    """Wall-clock seconds of the phases of a run, and the work done in them.

    Attributes:
        compile: seconds tracing and compiling (0.0 when a compiled sampler was reused).
        warmup: seconds of warm-up, initial positions included.
        sampling: seconds of sampling, from the first kept draw to the last one on the host.
        gradient_evaluations: gradients of the log density over all chains, warm-up included.
        compilations: programs compiled for this run; 0 when a compiled sampler was reused.
        lane_efficiency: share of the gradients computed in sampling that went into draws; the rest were computed for
            chains that had their draws already.
    """

    compile: float = 0.0
    warmup: float = 0.0
    sampling: float = 0.0
    gradient_evaluations: int = 0
    compilations: int = 0
    lane_efficiency: float = 1.0

    @property
    def total(self) -> float:
        """Seconds of the whole run."""
        return self.compile + self.warmup + self.sampling


@dataclass(frozen=True)
class RunRecord:
    """What was run where: enough to read a report without the script that made it.

    Attributes:
        model: the model's name and, where Python can show it, its source.
        kernel: the kernel as the user would write it, e.g. `hmc(num_steps=10)`.
        num_chains, num_warmup, num_samples, seed: the sizes asked for.
        mesh: devices along each mesh axis, e.g. `{"chain": 2, "data": 1, "model": 1}`.
        devices: one description per device, e.g. `TFRT_CPU_0`.
        data: one line per data argument: shape, dtype and the axis it is sharded over.
        latents: one line per latent variable: shape, support and the axis it is sharded over.
        versions: of phalanx, jax, numpyro, numpy and Python.
        matmul_precision: precision of matrix products in the run.
        init: where chains began: "random", or what kind of values were given and of which variables.
        started: local time at the start, ISO 8601.
        interrupted: True when Ctrl-C ended the run early.
        relocated_chains: chains that warm-up moved beside another, because where they were the posterior has next to no
            mass.
        folded_draws: draws of each chain that went into reducers and were not stored.
        acceptance_rate: mean over them.
        divergences: of those, over all chains.
        tells: by the name of a reducer that the verdict reads, what it tells: "r_hat" or "ess".
        constant: elements that were the same in every draw that such a reducer has seen, which the verdict leaves out.
        findings: what the run itself knows to be wrong, before a draw is looked at; the verdict begins with it.
        passed: what the run itself has found in order.
        independent: whether draws are independent, as those from a guide are: no chains are compared, and the verdict
            is what `findings` and `passed` say.
        labels: by variable, what its entries along each axis are called, or None where nothing says so.
        names: by data argument that had any, the names of its levels or columns, in the run's order; None where the
            record does not know, as in a file of an earlier release.
        scalars: the data arguments that are numbers, flags, words or shapes, which new data may leave out.
    """

    model: str
    kernel: str
    num_chains: int
    num_warmup: int
    num_samples: int
    seed: int
    mesh: dict[str, int]
    devices: list[str]
    data: dict[str, str]
    latents: dict[str, str]
    versions: dict[str, str]
    matmul_precision: str = "float32"
    init: str = "random"
    started: str = ""
    interrupted: bool = False
    relocated_chains: int = 0
    folded_draws: int = 0
    acceptance_rate: float | None = None
    divergences: int = 0
    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    tells: dict[str, str] = field(default_factory=dict)
    constant: tuple[str, ...] = ()
    independent: bool = False
    labels: Names = field(default_factory=dict, repr=False)
    names: NamesOfData | None = field(default=None, repr=False)
    scalars: dict[str, Any] = field(default_factory=dict, repr=False)
    source: str = field(default="", repr=False)

    def of_rows(self, rows: RowsApart) -> RunRecord:
        """The record with what is known of the devices' shares of the log density."""
        unknown = [Finding("shares not checked", rows.problem, ADVICE)] if rows.problem else []
        if rows.differs:
            unknown.append(Finding("shares differ", f"The draws are wrong. {rows.differs}", ADVICE))
        known = [rows.passed] if rows.passed else []
        return replace(self, findings=(*self.findings, *unknown), passed=(*self.passed, *known))

    def of_run(
        self, started: str, interrupted: bool, relocations: Sequence[Relocation], findings: Sequence[Finding]
    ) -> RunRecord:
        """Return the record of one run of a compiled sampler, with what was found in it."""
        last = {relocation.chain: relocation for relocation in relocations}
        relocated = [_relocated(list(last.values()), self)] if last else []
        return replace(
            self,
            started=started,
            interrupted=interrupted,
            relocated_chains=len(last),
            findings=(*self.findings, *relocated, *findings),
        )

    @classmethod
    def of_json(cls, entries: Mapping[str, Any]) -> RunRecord:
        """The record whose fields were written as JSON, which knows no tuples."""
        findings = tuple(Finding(*finding) for finding in entries["findings"])
        tuples = {name: tuple(entries[name]) for name in ("passed", "constant")}
        labels = {
            name: tuple(None if words is None else tuple(words) for words in axes)
            for name, axes in entries["labels"].items()
        }
        names = entries.get("names")
        if names is not None:
            names = {name: (kind, tuple(words)) for name, (kind, words) in names.items()}
        scalars = {n: tuple(x) if isinstance(x, list) else x for n, x in entries.get("scalars", {}).items()}
        made = {**tuples, "findings": findings, "labels": labels, "names": names, "scalars": scalars}
        return cls(**{**entries, **made})


def _relocated(relocations: Sequence[Relocation], record: RunRecord) -> Finding:
    many = len(relocations) > 1
    places: dict[int, list[int]] = {}
    for relocation in relocations:
        places.setdefault(relocation.beside, []).append(relocation.chain)
    relocated = [f"{_chains(chains)} beside chain {beside}" for beside, chains in sorted(places.items())]
    share = max(relocation.log_share for relocation in relocations) / math.log(10)
    return Finding(
        "relocated chains",
        f"{len(relocations)} of {count(record.num_chains, 'chain')} {'were' if many else 'was'} moved in warm-up "
        f"({first_few(relocated)}): where {'they were' if many else 'it was'} there is less than "
        f"1e{math.ceil(share):d} of the posterior's mass.",
        f"phx.{record.kernel.partition('(')[0]}(relocate=False), which moves none, to see what was there; "
        f"then priors that rule it out",
        grade="usable",
    )


def _chains(numbers: Sequence[int]) -> str:
    return f"chain{'s' if len(numbers) > 1 else ''} {first_few(sorted(numbers))}"
