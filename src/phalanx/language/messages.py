"""Where NumPyro's stack of handlers and our tracers meet: each tracer stands among the handlers, as one of them.

A random variable travels as NumPyro's message, so `numpyro.sample` and `phx.sample` are one language, and what was
entered later is inside, whosever it is. A handler there only says what it does before and after the others; a tracer
here calls the rest, `forward`, itself. So at a tracer's place, its `Fence`, a message stops; and what the tracer
forwards goes on from there as a new message. That one has to pass the handlers inside of the fence, as a courier who
is of no interest to them, before it becomes a variable again.

NumPyro's stack is one for all threads, ours is not. It belongs to the thread whose tracers stand on it; what another
thread traces meanwhile goes past it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax.numpy as jnp
from jax import Array
from numpyro.handlers import seed

from phalanx.language import refusals
from phalanx.language.random_variable import RandomVariable
from phalanx.mesh.compatibility.numpyro_internals import Message, Messenger, apply_stack

Forward = Callable[[RandomVariable], RandomVariable]
Tracer = Callable[[RandomVariable, Forward], RandomVariable]

SITES = ("sample", "deterministic")
"""Messages that are random variables."""

COURIER = "prng_key"
"""A request for a key that has an answer already: the one message that every handler lets pass, `block` included."""


class _Threads:
    """Which threads trace, and whose tracers stand on NumPyro's stack."""

    def __init__(self) -> None:
        self._lock, self._ground = threading.Lock(), _Ground()
        self._tracing: dict[int, int] = {}  # by thread, how many tracers
        self.owner: int | None = None

    def is_past(self) -> bool:
        """Whether this thread's tracers do not stand on NumPyro's stack, for it was another's when the first came."""
        me = threading.get_ident()
        return self.owner not in (None, me) or (self.owner is None and me in self._tracing)

    @contextmanager
    def tracing(self) -> Iterator[bool]:
        """Count this thread in; yields whether the stack is its own."""
        me = threading.get_ident()
        with self._lock:
            past = self.is_past()
            self._tracing[me] = self._tracing.get(me, 0) + 1
            if sum(self._tracing.values()) == 1:
                self._ground.__enter__()
            self.owner = self.owner if past else me
        try:
            yield not past
        finally:
            with self._lock:
                self._tracing[me] -= 1
                if not self._tracing[me]:
                    del self._tracing[me]
                    self.owner = None if self.owner == me else self.owner
                if not self._tracing:
                    self._ground.__exit__(None, None, None)

    def is_tracing(self) -> bool:
        """Whether this thread has tracers."""
        return threading.get_ident() in self._tracing


class _Ground(Messenger):
    """Under all tracers of all threads: no variable of NumPyro's is missed in a thread whose tracers it cannot see."""

    def process_message(self, msg: Message) -> None:
        if _threads.is_past() and _threads.is_tracing():
            refusals.other_thread(msg)


_threads = _Threads()


def goes_past() -> bool:
    """Whether what this thread samples goes past NumPyro's stack, which is another thread's."""
    return _threads.is_past()


@contextmanager
def standing(tracer: Tracer) -> Iterator[None]:
    """`tracer` among NumPyro's handlers, if their stack is this thread's."""
    with _threads.tracing() as is_mine, Fence(tracer) if is_mine else nullcontext():
        yield


def send(variable: RandomVariable) -> RandomVariable:
    """A random variable on its way through all handlers and tracers: what becomes of it."""
    message = _message(variable)
    _apply(message)
    return _variable(message).complete()


@contextmanager
def requests_answered(key: Array) -> Iterator[None]:
    """Keys for what NumPyro's primitives draw besides variables: subsamples, and sites that its `block` hides."""
    with nullcontext() if goes_past() else seed(rng_seed=key, hide_types=["sample"]):
        yield


class Fence(Messenger):
    """A tracer's place among NumPyro's handlers."""

    def __init__(self, tracer: Tracer):
        super().__init__(None)
        self._tracer, self._thread = tracer, threading.get_ident()
        self._under_way: list[Message] = []  # what this tracer has forwarded, as couriers
        self._names: list[str] = []

    def process_message(self, msg: Message) -> None:
        """Run the tracer on a variable; refuse what can mean nothing."""
        if threading.get_ident() != self._thread:
            return
        if msg.get("beyond") is self:
            self._under_way.append(msg)
            _replace(msg, msg["carries"])
        elif msg["type"] not in SITES:
            refusals.check(msg)
        elif msg["name"] not in self._names:  # `do` outside sends the variable, which has been here, once more
            self._trace(msg)

    def postprocess_message(self, msg: Message) -> None:
        """Make a message that went on from here a courier again: handlers inside know it not."""
        if self._under_way and self._under_way[-1] is msg:
            self._under_way.pop()
            _replace(msg, {"type": COURIER, "value": True, "carries": dict(msg)})

    def go_on(self, variable: RandomVariable, msg: Message | None = None) -> RandomVariable:
        """Send a variable to the handlers outside of this tracer; `msg` is what it came as."""
        site = _message(variable, msg)
        courier = {"type": COURIER, "value": True, "kwargs": {"rng_key": None}, "carries": site, "beyond": self}
        waiting = len(self._under_way)
        try:
            _apply(courier)
        finally:
            del self._under_way[waiting:]
        return _variable(courier["carries"]).complete()

    def _trace(self, msg: Message) -> None:
        floor = _Floor(self)
        self._names.append(msg["name"])
        try:
            with floor:
                after = self._tracer(_variable(msg), lambda variable: floor.lift(variable, msg))
        finally:
            self._names.pop()
        _replace(msg, {**_message(after.complete(), msg), "stop": True})


class _Floor(Messenger):
    """What a tracer at work stands on: the variables that it samples itself go to the handlers outside of it."""

    def __init__(self, fence: Fence):
        super().__init__(None)
        self._fence, self._lifted = fence, False

    def lift(self, variable: RandomVariable, msg: Message | None = None) -> RandomVariable:
        """Send a variable on; what handlers outside sample by the way passes all handlers, as NumPyro has it."""
        lifted, self._lifted = self._lifted, True
        try:
            return self._fence.go_on(variable, msg)
        finally:
            self._lifted = lifted

    def process_message(self, msg: Message) -> None:
        if not self._lifted and msg["type"] in SITES:
            _replace(msg, {**_message(self.lift(_variable(msg), msg), msg), "stop": True})


def _apply(message: Message) -> None:
    try:
        apply_stack(message)
    except (AssertionError, NotImplementedError):
        if message["type"] == "sample" and message["value"] is None:
            _variable(message).complete()  # says why it cannot be drawn
        raise


def _message(variable: RandomVariable, like: Message | None = None) -> Message:
    """A variable as NumPyro's message, with what `like` has for handlers alone."""
    common = {"name": variable.name, "value": variable.value}
    own = {
        "axes": variable.axes, "natural": variable.natural, "parameter": variable.parameter, "given": variable.is_given,
        "logit": (variable.logit, variable.value),
    }  # fmt: skip
    if variable.parameter is not None:  # like a deterministic value, which may have none yet
        like = {"args": (), "cond_indep_stack": [], **(like or {}), "kwargs": {"rng_key": variable.key}}
        return {**like, **common, "type": "deterministic", "fn": _no_value, "phalanx": own}
    if variable.distribution is None:
        return {"cond_indep_stack": [], **(like or {}), **common, "type": "deterministic", "phalanx": own}
    auxiliary = {"is_auxiliary": True} if refusals.is_term(variable.distribution) else {}
    defaults = {"args": (), "intermediates": [], "cond_indep_stack": [], "infer": auxiliary}
    unscaled = isinstance(variable.scale, float) and variable.scale == 1.0
    return {
        **defaults,
        **(like or {}),
        **common,
        "type": "sample",
        "fn": variable.distribution,
        "kwargs": {"rng_key": variable.key, "sample_shape": ()},
        "is_observed": variable.observed,
        "scale": None if unscaled else variable.scale,
        "phalanx": own,
    }


def _variable(message: Message) -> RandomVariable:
    """What a message of type sample or deterministic says, as a random variable."""
    name, value, own = message["name"], message["value"], message.get("phalanx", {})
    if (parameter := own.get("parameter")) is not None:
        return RandomVariable(name, None, value, key=message["kwargs"].get("rng_key"), parameter=parameter)
    if message["type"] == "deterministic":
        refusals.check_deterministic(name, value)
        return RandomVariable(name, None, value, observed=True, natural=own.get("natural"))
    distribution, kwargs = message["fn"], message["kwargs"]
    if value is None and kwargs.get("sample_shape"):
        distribution = distribution.expand((*kwargs["sample_shape"], *distribution.batch_shape))
    logit, of_value = own.get("logit", (None, None))
    if of_value is not value:  # a handler gave the variable another value
        logit = None
    if value is not None and (message["cond_indep_stack"] or "phalanx" not in message):
        shape = (*distribution.batch_shape, *distribution.event_shape)
        value, logit = _broadcast(value, shape), None if logit is None else _broadcast(logit, shape)
    scale = 1.0 if message["scale"] is None else message["scale"]
    axes, key = own.get("axes", ()), kwargs.get("rng_key")
    observed = bool(message["is_observed"])
    suggested = value is not None and not observed and not own.get("given", False)
    return RandomVariable(
        name, distribution, value, observed, axes, scale, key, suggested=suggested, logit=logit
    )  # fmt: skip


def _no_value(**_: Any) -> None:
    """What a parameter is before it is known what becomes of it."""


def _broadcast(value: Any, shape: tuple[int, ...]) -> Any:
    """`value` as every element of a plate sees it, where it has fewer."""
    given = jnp.shape(value)
    if len(given) > len(shape) or given == shape:
        return value
    fits = all(mine in (1, theirs) for mine, theirs in zip(given[::-1], shape[::-1], strict=False))
    if not fits:
        return value  # the check of shapes says so
    value = jnp.reshape(jnp.asarray(value), (1,) * (len(shape) - len(given)) + given)
    return jnp.broadcast_to(value, shape)


def _replace(message: Message, by: Message) -> None:
    """Put `by` in the place of what a message says; whoever holds the message sees it."""
    fields = dict(by)
    message.clear()
    message.update(fields)
