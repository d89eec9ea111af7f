"""Identity of a run or a training, as JSON: what a checkpoint must share with the call that continues it.

Programs and optimisers are identified by their traces, which show all that they read, such as the rate of an optimiser.
Another release of a library may trace the same program differently, so traces are compared under equal releases only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NotRequired, TypedDict

import jax
import numpy as np

from phalanx.jaxprs.canonical import form_of
from phalanx.mesh.agreement import CONTENT
from phalanx.mesh.compatibility.compiler_settings import compiler_settings, warn_of_other_settings
from phalanx.mesh.compatibility.jax_internals import live
from phalanx.mesh.output import warn
from phalanx.mesh.specs import PyTree

TRACED_BY = ("jax", "numpyro", "optax", "flax", "equinox", "phalanx")
"""Libraries whose releases may change a trace."""

_NOT_LIVE = object()
"""Stands for a trace of which JAX cannot determine the part that is needed; it has no digest."""


class Identity(TypedDict):
    """Identity of a run or a training.

    Attributes:
        said: values that a message can show, such as seeds and shapes; those of a run include releases of libraries.
        contents: digests of data; None without data.
        traces: digests of programs; None for programs without comparable content.
        releases: versions of the libraries that traced the programs of a training.
        compiler: settings by which equal programs round differently; older releases recorded none.
    """

    said: dict[str, Any]
    contents: dict[str, str | None]
    traces: dict[str, str | None]
    releases: dict[str, str]
    compiler: NotRequired[dict[str, str]]


def texts_of(identity: Identity) -> dict[str, str]:
    """Return an identity as texts by name, which processes compare."""
    digests = {f"{CONTENT}{name}": str(one) for name, one in {**identity["contents"], **identity["traces"]}.items()}
    return {**{name: str(value) for name, value in identity["said"].items()}, **digests, **identity["releases"]}


def identity_of(settings: dict[str, Any], contents: dict[str, str | None], traces: Mapping[str, Any]) -> Identity:
    """Return the identity of a training from traces, as `trace` gives them."""
    digests = {name: _digest(one) for name, one in traces.items()}
    return Identity(
        said=settings, contents=contents, traces=digests, releases=_releases(), compiler=compiler_settings()
    )


@dataclass(frozen=True)
class Comparison:
    """Comparison of the identities of two runs or two trainings, in words.

    Attributes:
        descriptions: for each content and trace, what it is of; empty if their names say it.
        advice: what the user should do where they differ.
        follows: traces that change with others, by name: a change is reported only if those others are equal.
        spare: traces that need not be comparable.
    """

    descriptions: Mapping[str, str]
    advice: str
    follows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    spare: tuple[str, ...] = ()

    def check(self, title: str, kind: str, there: Identity, here: Identity) -> None:
        """Raise unless a folder holds what this call makes; warn of what could not be compared.

        Args:
            title: the folder's name in messages.
            kind: noun for what it holds.
            there: identity of what it holds.
            here: identity of what the call makes.

        Raises:
            ValueError: when it holds another run or training; the message names what differs.
        """
        if differences := self.differences(there, here):
            raise ValueError(f"{title} holds another {kind}: {differences}. {self.advice}")
        if opaque := self.not_compared(there, here):
            warn(
                f"{title} may be of another {kind}: not compared were {opaque}. Make sure that they are those it was "
                f"made with.",
                stacklevel=4,
            )
        warn_of_other_settings(f"{title}: the {kind}", there.get("compiler", {}))

    def differences(self, there: Identity, here: Identity) -> str:
        """Return what differs between two identities; empty where they are equal."""
        setting_differences = [
            f"{name} is {there['said'].get(name)} there, and {value} here"
            for name, value in here["said"].items()
            if there["said"].get(name) != value
        ]
        if setting_differences:  # the rest follows from these: another batch size makes another trace
            return "; ".join(setting_differences)
        contents = _others({**dict.fromkeys(here["contents"], ""), **there["contents"]}, here["contents"])
        traces = []
        if there["releases"] == here["releases"]:
            traces = _others(there["traces"], here["traces"])
        if not self.descriptions:
            content_differences = [f"the content of {name} differs" for name in contents]
            programs = [f"the trace of {name} differs (its code, or a value that it reads)" for name in traces]
            return "; ".join(content_differences or programs)
        others = {*contents, *traces}
        differing = [
            name for name in self.descriptions if name in others and others.isdisjoint(self.follows.get(name, ()))
        ]
        texts = dict.fromkeys(self.descriptions[name] for name in differing)
        return f"it differs in {' and in '.join(texts)}" if texts else ""

    def not_compared(self, there: Identity, here: Identity) -> str:
        """Return what could not be compared, and why; empty where all was."""
        if there["releases"] != here["releases"]:
            libraries = [
                f"{name} {there['releases'].get(name, '(none)')} there and {here['releases'].get(name, '(none)')} here"
                for name in TRACED_BY
                if there["releases"].get(name) != here["releases"].get(name)
            ]
            what = " and ".join(dict.fromkeys(self.descriptions[name] for name in here["traces"]))
            return f"{what}, because programs are written down by {', '.join(libraries)}"
        opaque = [
            self.descriptions[name]
            for name, digest in here["traces"].items()
            if name in self.descriptions and name not in self.spare and None in (digest, there["traces"].get(name))
        ]
        return f"{' and '.join(opaque)}, of which some function's content cannot be compared" if opaque else ""


def _others(there: Mapping[str, str | None], here: Mapping[str, str | None]) -> list[str]:
    """Return the names of digests that differ, and that neither lacks."""
    return [name for name, digest in here.items() if None not in (digest, there.get(name)) and digest != there[name]]


def trace(f: Callable[..., Any], *arguments: PyTree) -> object:
    """Trace the part of `f` that its outputs need: the rest may appear in the first of several traces only."""
    jaxpr = live(jax.make_jaxpr(f)(*arguments))
    return _NOT_LIVE if jaxpr is None else jaxpr


def digest_of(arrays: Iterable[tuple[str, np.ndarray]], labels: Mapping[str, Any] | None = None) -> str:
    """Return a digest of arrays by name: of names, dtypes, shapes and contents, and of labels that some have."""
    digest = hashlib.sha256()
    labels = labels or {}
    for name, array in arrays:
        array = np.ascontiguousarray(array)
        digest.update(f"{name} {array.dtype} {array.shape} {labels.get(name, '')}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _digest(trace_of_program: object) -> str | None:
    """Return a digest of a trace; None where something in it cannot be compared by content."""
    form = form_of(trace_of_program)
    return None if form is None else form.digest.hex()


def _releases() -> dict[str, str]:
    releases = {}
    for name in TRACED_BY:
        try:
            releases[name] = version(name)
        except PackageNotFoundError:
            continue
    return releases
