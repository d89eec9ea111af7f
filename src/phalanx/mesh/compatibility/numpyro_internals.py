"""Private and undocumented parts of NumPyro, each behind a guarded function with a fallback.

This is the only module of Phalanx that names them. `NAMES` lists those that are looked up, with the consequence if a
NumPyro lacks one. Only `phalanx.language.messages` depends on the layout of NumPyro's messages.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
from numpyro import handlers
from numpyro.distributions import Distribution, MaskedDistribution, MixtureGeneral, MixtureSameFamily

from phalanx.mesh.compatibility.jax_internals import find
from phalanx.mesh.specs import PyTree

MESSENGER, APPLY = "numpyro.primitives.Messenger", "numpyro.primitives.apply_stack"
VALIDATE = "numpyro.distributions.util.validate_sample"
MASKS = "numpyro.nn.auto_reg_nn.create_mask"
SCAN, ACTION = "numpyro.contrib.control_flow.scan.scan_wrapper", "numpyro.contrib.control_flow.scan._subs_wrapper"
PACKED = "numpyro.ops.pytree.PytreeTrace"
PROMOTE = "numpyro.distributions.batch_util.promote_batch_shape"
PROMOTE_VALUE = "numpyro.contrib.control_flow.scan._promote_scanned_value_shapes"

NAMES = {
    MESSENGER: "programs are refused",
    APPLY: "programs are refused",
    VALIDATE: "observations of Bernoulli variables are not checked by NumPyro",
    MASKS: "autoregressive flows are refused",
    SCAN: "discrete variables inside of loops of NumPyro's are refused",
    ACTION: "discrete variables inside of loops of NumPyro's are refused",
    PACKED: "discrete variables inside of loops of NumPyro's are refused",
    PROMOTE: "discrete variables inside of loops of NumPyro's are refused",
    PROMOTE_VALUE: "discrete variables inside of loops of NumPyro's are refused",
}
"""Consequence of each name's absence."""

Message = dict[str, Any]

_FOLDER = os.path.dirname(str(numpyro.__file__))


def refuse_without(name: str) -> Any:
    """Return the value of a name of NumPyro's.

    Raises:
        RuntimeError: when the installed NumPyro lacks it.
    """
    if (internal := find(name)) is None:
        raise RuntimeError(
            f"numpyro {numpyro.__version__} has no {name}, and this release of Phalanx needs it. Install another one: "
            f"pip install numpyro==0.22.0."
        )
    return internal


class _Refused:
    """Base class of handlers for a NumPyro without one: entering such a handler raises."""

    def __init__(self, fn: Distribution | None = None):
        del fn

    def __enter__(self) -> None:
        refuse_without(MESSENGER)


if TYPE_CHECKING:
    from numpyro.primitives import Messenger
else:
    Messenger = find(MESSENGER) or _Refused


def apply_stack(message: Message) -> None:
    """Send a message through NumPyro's stack of handlers."""
    refuse_without(APPLY)(message)


def validate_sample(log_prob: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method `log_prob` that checks its values if the distribution asks for it."""
    decorate = find(VALIDATE)
    return log_prob if decorate is None else decorate(log_prob)


# -- validation --------------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_within = 0
_off: Any = None


@contextmanager
def unvalidated() -> Iterator[None]:
    """Turn off NumPyro's checks of values, which cost time in every trace and do not apply to traced values.

    All threads share NumPyro's switch: it is restored when the last of them leaves.
    """
    global _within, _off
    with _lock:
        if _within == 0:
            _off = numpyro.validation_enabled(False)
            _off.__enter__()
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if _within == 0:
                _off.__exit__(None, None, None)


# -- attributes of distributions ---------------------------------------------------------------------------------------


def mask_of(distribution: MaskedDistribution) -> Any:
    """Return the mask of a masked distribution: True, False or an array."""
    try:
        return distribution._mask
    except AttributeError:
        raise RuntimeError(
            f"numpyro {numpyro.__version__}: the mask of a {type(distribution).__name__} cannot be read. Instead of "
            f".mask(...), add the terms that count by phx.factor."
        ) from None


def components_of(mixture: MixtureSameFamily | MixtureGeneral) -> list[Distribution]:
    """Return the components of a mixture; if they are of one family, one distribution over all of them."""
    same = isinstance(mixture, MixtureSameFamily)
    return [mixture.component_distribution] if same else list(mixture.component_distributions)


def with_components(mixture: Any, components: Sequence[Distribution]) -> Distribution:
    """Return a mixture with other components of the same shapes."""
    same = isinstance(mixture, MixtureSameFamily)
    name, value = ("_component_distribution", components[0]) if same else ("_component_distributions", components)
    if not hasattr(mixture, name):
        return type(mixture)(mixture.mixing_distribution, value, validate_args=False)
    mixture = copy(mixture)
    setattr(mixture, name, value)
    return mixture


# -- handlers and modules ----------------------------------------------------------------------------------------------

RANDOM_MODULES = ("random_flax_module", "random_nnx_module", "random_haiku_module", "random_eqx_module")
"""NumPyro's networks whose weights have priors. Each first makes the weights as a parameter, to get their shapes."""


def prior_of_module() -> Any:
    """Return the prior of NumPyro's random module under construction; None outside of one."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in RANDOM_MODULES and frame.f_code.co_filename.startswith(_FOLDER):
            return frame.f_locals.get("prior")
        frame = frame.f_back
    return None


def on_sites_within(message: Message, do: Callable[[Message], None]) -> None:
    """Call `do` on each site within a loop or branch of `numpyro.contrib.control_flow` with this message.

    The message has a list of the actions of outer handlers on inner sites, the innermost handler first.
    """
    message["kwargs"]["substitute_stack"].append(("substitute", OnSites(do)))


@dataclass(frozen=True)
class OnSites:
    """Action of a tracer on the sites within a loop or branch."""

    do: Callable[[Message], None]

    def __call__(self, site: Message) -> None:
        """Run the action."""
        self.do(site)


# -- loops -------------------------------------------------------------------------------------------------------------


class _Apart(Messenger):
    """Handler that hides all sites, as `numpyro.handlers.block` does, and asks for no key."""

    def __init__(self) -> None:
        super().__init__(None)

    def process_message(self, msg: Message) -> None:
        msg["stop"] = msg["type"] != "prng_key"


class ScanMessage(NamedTuple):
    """A loop of `numpyro.contrib.control_flow.scan`.

    Attributes:
        step: function of the carry and a row that returns the next carry and a result.
        init: the carry before the first step.
        rows: arrays with a row for each step, the leaves of a tree.
        length: number of steps.
        reverse: whether the last row comes first.
        actions: actions of the handlers within the program on sites of the loop.
    """

    step: Callable[..., Any]
    init: Any
    rows: Any
    length: int
    reverse: bool
    actions: Sequence[tuple[str, Any]]

    @classmethod
    def of(cls, message: Message) -> ScanMessage | None:
        """Return the loop in a message; None if the message is another one."""
        if message["type"] != "control_flow" or message["fn"] is not (find(SCAN) or message):
            return None
        step, init, rows, length, reverse = message["args"]
        if length is None:
            length = jnp.shape(jax.tree.leaves(rows)[0])[0]
        actions = [(kind, do) for kind, do in message["kwargs"]["substitute_stack"] if not isinstance(do, OnSites)]
        return cls(step, init, rows, length, reverse, actions)

    def run_step(
        self, number: PyTree, carry: PyTree, row: PyTree, give: Callable[[Message], Any]
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return the next carry, the sites and the result of a step; `give` returns values of its sites, or None."""
        step: Any = self.step
        for kind, values in self.actions:
            if kind not in ("condition", "substitute"):
                raise ValueError(f"numpyro.handlers.{kind} around a loop with discrete variables is not supported.")
            value = partial(self._value, values, number)
            step = (
                handlers.condition(step, condition_fn=value)
                if kind == "condition"
                else handlers.substitute(step, substitute_fn=value)
            )
        step = handlers.substitute(step, substitute_fn=give)
        recorder = handlers.trace()
        with _Apart(), recorder:
            carry, result = step(carry, row)
        return carry, refuse_without(PACKED)(recorder.trace), result

    def _value(self, values: Any, number: PyTree, site: Message) -> Any:
        """Return the value of a site that a handler gives; None if it gives values of the first steps alone."""
        if isinstance(values, dict) and site["type"] == "sample" and site["name"] in values:
            shape = jnp.shape(values[site["name"]])
            if len(shape) > len(site["fn"].shape()) and shape[0] < self.length:
                return None
        return refuse_without(ACTION)(values, number, self.length, site)

    def outcome(self, carry: PyTree, sites: PyTree, results: PyTree) -> PyTree:
        """Return the value of the message: the last carry, the sites of all steps, and the results."""
        for site in sites.trace.values():
            if site["type"] == "sample":
                site["fn"] = refuse_without(PROMOTE)(site["fn"])
                site["value"] = refuse_without(PROMOTE_VALUE)(site["value"], site["fn"])
        return (self.length, None, carry), (sites, results)


def explain_assertion(error: AssertionError) -> None:
    """Raise a `ValueError` that names the line for an assertion of NumPyro without a message."""
    frames = traceback.extract_tb(error.__traceback__)
    if str(error) or not frames or not frames[-1].filename.startswith(_FOLDER):
        return
    of_user = next((frame for frame in reversed(frames) if not frame.filename.startswith(_FOLDER)), frames[0])
    hint = ""
    if "occupied_dims" in (frames[-1].line or ""):
        hint = " Two plates, one inside of the other, have the same dim: give them different ones, or omit dim."
    if "is_discrete" in (frames[-1].line or "") and any("ZeroInflated" in (frame.line or "") for frame in frames):
        hint = (
            " The base of a zero-inflated distribution must be discrete. For positive numbers with zeros use "
            "dist.HurdleLogNormal, dist.HurdleGamma or dist.HurdleDistribution(base, gate=p); for a base with negative "
            "numbers observe y == 0 by dist.Bernoulli(p), and by the base those entries of y that are not zero."
        )
    raise ValueError(
        f"NumPyro refuses line {of_user.lineno} of {of_user.filename}, {of_user.line!r}, by its own "
        f"{frames[-1].line!r}.{hint}"
    ) from error
