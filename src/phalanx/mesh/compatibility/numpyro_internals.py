"""Private and undocumented parts of NumPyro, each behind a guarded function with a fallback.

This is the only module of Phalanx that names them. `NAMES` lists those that are looked up, with the consequence if a
NumPyro lacks one. Only `phalanx.language.messages` and `refusals` depend on the layout of NumPyro's messages.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

import numpyro
from numpyro.distributions import MaskedDistribution, MixtureGeneral, MixtureSameFamily

from phalanx.mesh.compatibility.jax_internals import find

MESSENGER, APPLY = "numpyro.primitives.Messenger", "numpyro.primitives.apply_stack"
VALIDATE = "numpyro.distributions.util.validate_sample"
MASKS = "numpyro.nn.auto_reg_nn.create_mask"

NAMES = {
    MESSENGER: "programs are refused",
    APPLY: "programs are refused",
    VALIDATE: "observations of Bernoulli variables are not checked by NumPyro",
    MASKS: "autoregressive flows are refused",
}
"""Consequence of each name's absence."""

Message = dict[str, Any]

_FOLDER = os.path.dirname(str(numpyro.__file__))


def refuse_without(name: str) -> Any:
    """Return the value of a name of NumPyro's.

    Raises:
        RuntimeError: when the installed NumPyro lacks it.
    """
    if (found := find(name)) is None:
        raise RuntimeError(
            f"numpyro {numpyro.__version__} has no {name}, and this release of Phalanx needs it. Install another one: "
            f"pip install numpyro==0.22.0."
        )
    return found


class _Refused:
    """Base class of handlers for a NumPyro without one: entering such a handler raises."""

    def __init__(self, fn: Any = None):
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

_lock, _within = threading.Lock(), 0
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


def components_of(mixture: MixtureSameFamily | MixtureGeneral) -> list[Any]:
    """Return the components of a mixture; if they are of one family, one distribution over all of them."""
    same = isinstance(mixture, MixtureSameFamily)
    return [mixture.component_distribution] if same else list(mixture.component_distributions)


def with_components(mixture: Any, components: Sequence[Any]) -> Any:
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
    message["kwargs"]["substitute_stack"].append(("substitute", do))


def explain_assertion(error: AssertionError) -> None:
    """Raise a `ValueError` that names the line for an assertion of NumPyro without a message."""
    frames = traceback.extract_tb(error.__traceback__)
    if str(error) or not frames or not frames[-1].filename.startswith(_FOLDER):
        return
    own = next((frame for frame in reversed(frames) if not frame.filename.startswith(_FOLDER)), frames[0])
    hint = ""
    if "occupied_dims" in (frames[-1].line or ""):
        hint = " Two plates, one inside of the other, have the same dim: give them different ones, or omit dim."
    raise ValueError(
        f"NumPyro refuses line {own.lineno} of {own.filename}, {own.line!r}, by its own {frames[-1].line!r}.{hint}"
    ) from error
