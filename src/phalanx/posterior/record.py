"""Record and timing of a run: its model, kernel, sizes, mesh, devices, data, findings and seconds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.adaptation.stuck_chains import Relocation
from phalanx.diagnostics import Finding
from phalanx.diagnostics.elements import Names
from phalanx.errors.message_text import count, first_few
from phalanx.inputs.axis_names import AxisNames, Word
from phalanx.inputs.known_data import Names as NamesOfData
from phalanx.posterior.communication import Communication

PRIOR_ONLY = Finding(
    "prior only",
    "The model observes no variable and has no factor: these are draws of the prior.",
    "passing the data to the model, under the names of its arguments, if a posterior was meant",
    "usable",
)
"""Finding on a run that observes nothing."""


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
            chains that already had their draws.
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
    """Record of a run, sufficient to read a report without the script that made it.

    Attributes:
        model: the model's name and, where Python can show it, its source.
        kernel: the kernel as the user would write it, e.g. `hmc(num_steps=10)`.
        num_chains, num_warmup, num_samples, seed: the requested sizes and seed.
        mesh: devices along each mesh axis, e.g. `{"chain": 2, "data": 1, "model": 1}`.
        devices: one description per device, e.g. `TFRT_CPU_0`.
        data: one line per data argument: shape, dtype and the axis it is sharded over.
        latents: one line per latent variable: shape, support and the axis it is sharded over.
        versions: of phalanx, jax, numpyro, numpy and Python.
        matmul_precision: precision of matrix products in the run.
        init: start of the chains: "random", or the kind of the given values and their variables.
        superchains: number of groups of chains with a common start; 0 without groups.
        started: local time at the start, ISO 8601.
        interrupted: True when Ctrl-C ended the run early, and in saves of a run that goes on.
        relocated_chains: chains that warm-up moved beside another, out of regions with almost no posterior mass.
        reduced_draws: draws of each chain that reducers received and the run did not store.
        acceptance_rate: mean acceptance rate of these draws.
        divergences: divergences among these draws, over all chains.
        diagnostics: "r_hat" or "ess", by the name of the reducer that computes it for the verdict.
        constant: elements that were equal in every draw that such a reducer received; the verdict leaves them out.
        findings: problems that the run reported, whatever its draws; the verdict begins with them.
        passed: checks that the run itself passed, in words.
        independent: True if draws are independent, as those of a guide: the verdict then compares no chains and
            consists of `findings` and `passed`.
        labels: by variable, the names of its entries along each axis, or None for an axis without names.
        dims: by variable or argument, the names of its axes, or None for an axis without a name.
        coords: by dimension, the names of the entries along it; an axis without a name is `<variable>_dim_0`, ....
        names: by data argument, the names of its levels or columns in the run's order; None in files of earlier
            releases, which do not record them.
        centring: by partially centred variable, the mean, least and greatest weight of its elements: 1 is centred, 0
            non-centred.
        observed: names of the observed variables; None in files of earlier releases.
        prior_only: true if the log density has no terms besides the priors: the model observes no variable and has no
            factor.
        compiler: flags of XLA, work-arounds that are turned off, kind of the devices, and the processor; empty in files
            of earlier releases.
        communication: messages that devices send one another in each evaluation of the log density and its gradient;
            empty if no data are sharded.
        scalars: data arguments that are numbers, flags, words or shapes; new data may leave them out.
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
    reduced_draws: int = 0
    acceptance_rate: float | None = None
    divergences: int = 0
    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    diagnostics: dict[str, str] = field(default_factory=dict)
    constant: tuple[str, ...] = ()
    independent: bool = False
    labels: Names = field(default_factory=dict, repr=False)
    names: NamesOfData | None = field(default=None, repr=False)
    scalars: dict[str, Any] = field(default_factory=dict, repr=False)
    source: str = field(default="", repr=False)
    dims: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict, repr=False)
    coords: Mapping[str, tuple[Word, ...]] = field(default_factory=dict, repr=False)
    centring: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    observed: tuple[str, ...] | None = None
    superchains: int = 0
    compiler: Mapping[str, str] = field(default_factory=dict, repr=False)
    prior_only: bool = False
    communication: tuple[Communication, ...] = field(default=(), repr=False)

    @property
    def axes(self) -> AxisNames:
        """Names of the axes of variables and data."""
        return AxisNames(self.dims, self.coords, self.labels)

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings of the run and of its model, with which a verdict begins."""
        return (*self.findings, PRIOR_ONLY) if self.prior_only else self.findings

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on the coordinates in which the chains moved, if they are not the model's own."""
        texts = [f"{name} {_weights(*weights)}" for name, weights in self.centring.items()]
        if not texts:
            return ()
        return (f"Centring of positions (1 is centred, 0 non-centred): {', '.join(texts)}.",)

    def named_like(self, other: RunRecord) -> RunRecord:
        """Return the record with the names of axes of another run of the model, if it has any."""
        if not other.dims and not other.coords:  # of an earlier release
            return self
        return replace(self, labels=other.labels, dims=other.dims, coords=other.coords)

    def of_run(
        self, start_time: str, is_interrupted: bool, relocations: Sequence[Relocation], findings: Sequence[Finding]
    ) -> RunRecord:
        """Return the record of one run of a compiled sampler, with what was found in it."""
        last = {relocation.chain: relocation for relocation in relocations}
        relocated = [_relocation_finding(list(last.values()), self)] if last else []
        return replace(
            self,
            started=start_time,
            interrupted=is_interrupted,
            relocated_chains=len(last),
            findings=(*self.findings, *relocated, *findings),
        )

    @classmethod
    def of_json(cls, entries: Mapping[str, Any]) -> RunRecord:
        """Return the record whose fields were written as JSON, which has lists for tuples.

        Raises:
            ValueError: when a field is unknown, or of another type.
        """
        of_fields = {name: value for name, value in entries.items() if name in cls.__dataclass_fields__}
        if wrong := [
            name for name, value in of_fields.items() if not _may_be(value, cls.__dataclass_fields__[name].type)
        ]:
            raise ValueError(f"the entry {wrong[0]!r} of its record is {of_fields[wrong[0]]!r}")
        findings = tuple(Finding(*finding) for finding in entries["findings"])
        tuples = {name: tuple(entries[name]) for name in ("passed", "constant")}
        if entries.get("observed") is not None:
            tuples["observed"] = tuple(entries["observed"])
        labels = {
            name: tuple(None if of_axis is None else tuple(of_axis) for of_axis in axes)
            for name, axes in entries["labels"].items()
        }
        names = entries.get("names")
        if names is not None:
            names = {name: (kind, tuple(of_axis)) for name, (kind, of_axis) in names.items()}
        communication = tuple(Communication(*message) for message in entries.get("communication", ()))
        scalars = {n: tuple(x) if isinstance(x, list) else x for n, x in entries.get("scalars", {}).items()}
        tuples_of = ("dims", "coords", "centring")
        tuples_by_name = {of: {name: tuple(x) for name, x in entries.get(of, {}).items()} for of in tuples_of}
        converted = {
            **tuples,
            "findings": findings,
            "labels": labels,
            "names": names,
            "scalars": scalars,
            **tuples_by_name,
            "communication": communication,
        }
        # earlier releases wrote `reduced_draws` and, in the same place, `diagnostics` by other names
        fields = ["reduced_draws" if name == "folded_draws" else name for name in entries]
        fields[fields.index("passed") + 1] = "diagnostics"
        if unknown := set(fields).difference(cls.__dataclass_fields__):
            raise ValueError(f"its record has the unknown fields {', '.join(map(repr, sorted(unknown)))}")
        return cls(**{**dict(zip(fields, entries.values(), strict=True)), **converted})


_OF_JSON: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "list": (list,),
    "tuple": (list,),
    "dict": (dict,),
    "Mapping": (dict,),
    "Names": (dict,),
    "NamesOfData": (dict,),
    "None": (type(None),),
}
"""Types that JSON has for those of fields."""


def _may_be(value: object, annotation: Any) -> bool:
    """Return True if a value from JSON may be one of a field with this annotation."""
    kinds = re.sub(r"\[.*\]", "", str(annotation)).split("|")
    return any(type(value) in _OF_JSON[kind.strip()] for kind in kinds)


def _weights(mean: float, least: float, greatest: float) -> str:
    return f"{mean:.2g}" if least == greatest else f"{mean:.2g} ({least:.2g} to {greatest:.2g})"


def _relocation_finding(relocations: Sequence[Relocation], record: RunRecord) -> Finding:
    many = len(relocations) > 1
    places: dict[int, list[int]] = {}
    for relocation in relocations:
        places.setdefault(relocation.beside, []).append(relocation.chain)
    relocated = [f"{_chains(chains)} beside chain {beside}" for beside, chains in sorted(places.items())]
    share = max(relocation.log_fraction for relocation in relocations) / math.log(10)
    return Finding(
        "relocated chains",
        f"{len(relocations)} of {count(record.num_chains, 'chain')} {'were' if many else 'was'} moved in warm-up "
        f"({first_few(relocated)}): {'each region they' if many else 'the region it'} left holds less than "
        f"1e{math.ceil(share):d} of the posterior's mass.",
        f"phx.{record.kernel.partition('(')[0]}(relocate=False), which moves no chain, to see the draws there; "
        f"then priors that exclude them",
        grade="usable",
    )


def _chains(numbers: Sequence[int]) -> str:
    return f"chain{'s' if len(numbers) > 1 else ''} {first_few(sorted(numbers))}"
