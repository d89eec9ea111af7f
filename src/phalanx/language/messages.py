"""Bridge between NumPyro's stack of handlers and our tracers: each tracer is installed as one of the handlers.

A random variable is sent as NumPyro's message, so `numpyro.sample` and `phx.sample` are one language, and handlers and
tracers nest in the order in which they are entered. NumPyro calls each of its handlers before and after the handlers
outside of it; our tracer calls the handlers outside of it itself, through `forward`. So a message stops at a tracer's
`TracerHandler`, and a variable that the tracer forwards continues from there as a new message. NumPyro sends a new
message through the whole stack: forwarded variables cross the inner handlers disguised as an answered `prng_key`, which
all handlers ignore.

For example, a tracer sets `mu` to 0.3 between two handlers of NumPyro, each of which scales log densities::

    with scale(scale=3.0), TracerHandler(tracer), scale(scale=2.0):
        numpyro.sample("mu", dist.Normal(0, 1))

    the inner handler     sees type "sample", value None        and sets the scale to 2
    the tracer            gets RandomVariable("mu", scale=2)    and forwards it with value 0.3
    the inner handler     sees type "prng_key", value True      and ignores it
    the outer handler     sees type "sample", value 0.3         and sets the scale to 6
    the tracer            receives value 0.3, scale 6           and returns it; `numpyro.sample` returns 0.3

All threads share one NumPyro stack, but each thread has its own tracers. The stack belongs to the first thread that
installs a tracer; other threads that trace at the same time bypass it.

Primitives of NumPyro that have no meaning here are refused, each with the way out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, Unit
from numpyro.handlers import seed

from phalanx.distributions.blocked import Blocked
from phalanx.language.loops import LatentLoop, step_variables
from phalanx.language.random_variable import RandomVariable
from phalanx.mesh.compatibility.numpyro_internals import (
    Message,
    Messenger,
    ScanMessage,
    apply_stack,
    on_sites_within,
    prior_of_module,
)
from phalanx.mesh.specs import PyTree

Forward = Callable[[RandomVariable], RandomVariable]
Tracer = Callable[[RandomVariable, Forward], RandomVariable]

SITES = ("sample", "deterministic")
"""Types of the messages that are random variables."""

IGNORED = "prng_key"
"""Type of a request for a key. Every handler ignores an answered request, `block` included."""


def check(message: Message) -> None:
    """Refuse a message other than a random variable, now or, if an outer handler may answer it, at its end."""
    if (refuse := _REFUSALS.get(message["type"])) is not None:
        refuse(message)


def is_term(distribution: Distribution) -> bool:
    """Return whether a distribution only stands for a term of the log density, from `factor`."""
    while (base := getattr(distribution, "base_dist", None)) is not None:  # masked or expanded
        distribution = base
    return isinstance(distribution, Unit) or (isinstance(distribution, Blocked) and distribution.is_term)


def _check_deterministic(name: str, value: object) -> None:
    """Raise unless a deterministic value is an array or a number."""
    try:
        if value is None:
            raise TypeError
        jnp.asarray(value)
    except TypeError:
        raise TypeError(
            f"The deterministic value {name!r} must be an array or a number; got {type(value).__name__}. Record each "
            f"array of it under a name of its own."
        ) from None


def _check_prior_covers(name: str, prior: PyTree, weights: PyTree) -> None:
    """Raise unless a dict of priors has one for every array of weights: the others would keep their initial values."""
    if not isinstance(prior, dict):
        return
    paths = [".".join(str(key.key) for key in path) for path, _ in jax.tree_util.tree_leaves_with_path(weights)]
    if missing := [path for path in paths if path not in prior]:
        raise ValueError(
            f"numpyro.module {name!r}: the weights {', '.join(map(repr, missing))} have no prior, and would keep their "
            f"initial values. Give prior= one for each, or a function of name and shape."
        )


def _param(message: Message) -> None:
    name = message["name"]
    if message["value"] is not None:
        return
    if name.endswith("$params") and (prior := prior_of_module()) is not None:
        if message["args"] and message["args"][0] is not None:
            _check_prior_covers(name.removesuffix("$params"), prior, message["args"][0])
        return

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            f"numpyro.module {name.removesuffix('$params')!r}: networks whose weights are parameters of NumPyro are "
            f"not supported. For phx.fit, in a guide or a model, use "
            f"phx.network({name.removesuffix('$params')!r}, network); for sampling, in which all weights have a prior, "
            f"use phx.random_network({name.removesuffix('$params')!r}, init, apply)."
            if name.endswith("$params")
            else f"Site {name!r} is a numpyro.param, which is not supported. For phx.fit, in a guide or a model, use "
            f"phx.param({name!r}, init, constraint); for sampling make it a numpyro.sample with a prior "
            f"(numpyro.handlers.lift does it for a whole model), or an argument of the model; to fix its value use "
            f"numpyro.handlers.substitute(model, {{{name!r}: value}})."
        )

    message["fn"] = refuse


def _mutable(message: Message) -> None:
    raise ValueError(
        f"Site {message['name']!r} is a numpyro.mutable: a density must not depend on state that changes from one "
        f"evaluation to the next. Use a module without state, such as one that normalises by layer and not by batch, "
        f"or pass the state in as data."
    )


def _plate(message: Message) -> None:
    size, subsample_size = message["args"]
    _unless_there_is_a_key(
        message,
        f"plate {message['name']!r}: {subsample_size} of {size} rows would be drawn at random in each run of the "
        f"program, so its log density would be random. Leave subsample_size out; phx.fit(batch_size=) draws rows, and "
        f"so do the kernels phx.sgld and phx.sghmc of phx.mcmc.",
    )


def _key(message: Message) -> None:
    if prior_of_module() is not None:  # the key initialises weights, of which only the shapes are used
        return
    _unless_there_is_a_key(
        message,
        "The program asks for a random key, with numpyro.prng_key or by hiding a variable without a value in "
        "numpyro.handlers.block, and there is no key: under inference a density must be the same each time. Put "
        "phx.seed or numpyro.handlers.seed around that part, or draw with a phx.sample that is not hidden.",
    )


def _unless_there_is_a_key(message: Message, sentence: str) -> None:
    if message["value"] is not None:
        return
    inner: Callable[..., Any] = message["fn"]

    def draw(*args: Any, rng_key: Any = None, **kwargs: Any) -> Any:
        if rng_key is None:
            raise ValueError(sentence)
        return inner(*args, rng_key=rng_key, **kwargs)

    message["fn"] = draw


def _control_flow(message: Message) -> None:
    def refuse(site: Message) -> None:
        if site["type"] == "sample" and not site["is_observed"] and site["kwargs"].get("rng_key") is None:
            if site["fn"].support.is_discrete:
                raise ValueError(
                    f"Variable {site['name']!r} is latent and discrete inside of numpyro.contrib.control_flow "
                    f"({_flow(message)}), and chains cannot move it. Sum over its values with "
                    f"phx.marginalize(model). Or carry the logarithm of the probability of each value from step "
                    f"to step (the forward algorithm), in jax.lax.{_flow(message)}, and add that of the last step with "
                    f"numpyro.factor or phx.factor."
                )
            if _flow(message) == "cond":
                raise ValueError(
                    f"Variable {site['name']!r} is latent in a branch of numpyro.contrib.control_flow.cond, where only "
                    f"observed variables have a meaning here. If both branches sample it, sample it before, with the "
                    f"parameters chosen by jnp.where(condition, a, b); otherwise sample a variable for each branch "
                    f"before, and choose between their values by jnp.where."
                )

    loop = ScanMessage.of(message)
    variables = [] if loop is None else step_variables(loop)
    is_discrete = any(variable.support.is_discrete for variable in variables)
    if loop is None or not variables or (is_discrete and not has_key()):
        on_sites_within(message, refuse)
        return
    continued = next((variable for variable in variables if variable.first_values is not None), None)
    if continued is not None and not has_key():
        raise ValueError(
            f"Variable {continued.name!r} is sampled in the {loop.length} steps of numpyro.contrib.control_flow "
            f"(scan), and numpyro.handlers.condition gives it {len(continued.first_values)} values: the others can be "
            f"drawn, but not inferred. Make as many steps as there are data; posterior.predictive() draws the steps "
            f"after them."
        )
    # handlers within the program have acted on the steps
    of_loop = {"_control_flow_done": True}
    message["fn"] = lambda *_, **__: LatentLoop(loop).run(variables, lambda variable: send(variable, of_loop))
    message["stop"] = True


def _flow(message: Message) -> str:
    return "cond" if "cond" in getattr(message["fn"], "__name__", "") else "scan"


_REFUSALS: dict[str, Callable[[Message], None]] = {
    "param": _param,
    "mutable": _mutable,
    "plate": _plate,
    "prng_key": _key,
    "control_flow": _control_flow,
}


class _Threads:
    """Registry of the threads that trace, and the owner of NumPyro's stack."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guard = _Guard()
        self._tracing: dict[int, int] = {}  # number of tracers by thread
        self.owner: int | None = None

    def bypass(self) -> bool:
        """Return whether this thread bypasses NumPyro's stack, which another thread owned when its tracing began."""
        me = threading.get_ident()
        return self.owner not in (None, me) or (self.owner is None and me in self._tracing)

    @contextmanager
    def tracing(self) -> Iterator[bool]:
        """Count a tracer of this thread; yield whether the thread owns the stack."""
        me = threading.get_ident()
        with self._lock:
            bypass = self.bypass()
            self._tracing[me] = self._tracing.get(me, 0) + 1
            if sum(self._tracing.values()) == 1:
                self._guard.__enter__()
            self.owner = self.owner if bypass else me
        try:
            yield not bypass
        finally:
            with self._lock:
                self._tracing[me] -= 1
                if not self._tracing[me]:
                    del self._tracing[me]
                    self.owner = None if self.owner == me else self.owner
                if not self._tracing:
                    self._guard.__exit__(None, None, None)

    def is_tracing(self) -> bool:
        """Return whether this thread has tracers."""
        return threading.get_ident() in self._tracing


class _Guard(Messenger):
    """Handler inside of which all tracers of all threads are: it refuses NumPyro's sites in threads that bypass."""

    def process_message(self, msg: Message) -> None:
        if _threads.bypass() and _threads.is_tracing():
            raise RuntimeError(
                f"numpyro.{msg['type']} {msg.get('name', '')!r}: NumPyro has one stack of handlers for all threads, "
                f"and another thread was tracing a program when this one began. Run programs in NumPyro's language in "
                f"one thread at a time, or in processes; those that call phx.sample run in any number of threads."
            )


_threads = _Threads()


def bypasses_numpyro() -> bool:
    """Return whether variables of this thread bypass NumPyro's stack, which belongs to another thread."""
    return _threads.bypass()


@contextmanager
def installed(tracer: Tracer) -> Iterator[None]:
    """Install `tracer` among NumPyro's handlers if their stack is this thread's."""
    with _threads.tracing() as is_mine, TracerHandler(tracer) if is_mine else nullcontext():
        yield


def send(variable: RandomVariable, like: Message | None = None) -> RandomVariable:
    """Send a random variable, with fields of a message `like` it, through all handlers; return the result."""
    message = _message(variable, like)
    _apply(message)
    return _variable(message).complete()


class _Ours(dict[str, Any]):
    """Part of a message that NumPyro does not know, mostly arrays.

    NumPyro's `cond` compares messages of its branches, and cannot compare arrays.
    """

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ours) and self["axes"] == other["axes"]


class _Seeds(threading.local):
    count: int = 0


_seeds = _Seeds()


@contextmanager
def keys_for_primitives(key: Array) -> Iterator[None]:
    """Give keys to NumPyro's primitives for draws besides variables: subsamples, and sites that its `block` hides."""
    _seeds.count += 1
    try:
        with nullcontext() if bypasses_numpyro() else seed(rng_seed=key, hide_types=["sample"]):
            yield
    finally:
        _seeds.count -= 1


def has_key() -> bool:
    """Return whether a seed, ours or NumPyro's, gives keys to variables of this thread."""
    if _seeds.count or bypasses_numpyro():
        return _seeds.count > 0
    request = {"type": IGNORED, "fn": lambda rng_key: rng_key, "args": (), "kwargs": {"rng_key": None}, "value": None}
    try:
        apply_stack(request)
    except ValueError:  # the refusal of a request that no seed answers
        return False
    return request["value"] is not None


class TracerHandler(Messenger):
    """One tracer as a handler of NumPyro's."""

    def __init__(self, tracer: Tracer):
        super().__init__(None)
        self._tracer = tracer
        self._thread = threading.get_ident()
        self._forwarded: list[Message] = []  # messages that this tracer has forwarded and that are on their way
        self._names: list[str] = []

    def process_message(self, msg: Message) -> None:
        """Run the tracer on a variable; refuse primitives that have no meaning here."""
        if threading.get_ident() != self._thread:
            return
        if msg.get("beyond") is self:
            self._forwarded.append(msg)
            _replace(msg, msg["carries"])
        elif msg["type"] not in SITES:
            check(msg)
        elif msg["name"] not in self._names:  # `do` outside sends a variable again that this tracer has forwarded
            self._trace(msg)

    def postprocess_message(self, msg: Message) -> None:
        """Disguise a forwarded message again, so that inner handlers ignore it."""
        if self._forwarded and self._forwarded[-1] is msg:
            self._forwarded.pop()
            _replace(msg, {"type": IGNORED, "value": True, "carries": dict(msg)})

    def forward(self, variable: RandomVariable, msg: Message | None = None) -> RandomVariable:
        """Send a variable, which arrived as `msg`, to the handlers outside of this tracer."""
        site = _message(variable, msg)
        disguised = {"type": IGNORED, "value": True, "kwargs": {"rng_key": None}, "carries": site, "beyond": self}
        waiting = len(self._forwarded)
        try:
            _apply(disguised)
        finally:
            del self._forwarded[waiting:]
        return _variable(disguised["carries"]).complete()

    def _trace(self, msg: Message) -> None:
        sites = _OwnSites(self)
        self._names.append(msg["name"])
        try:
            with sites:
                after = self._tracer(_variable(msg), lambda variable: sites.forward(variable, msg))
        finally:
            self._names.pop()
        is_latent_of_loop = msg.get("_control_flow_done", False) and not msg.get("is_observed", True)
        has_run = msg["value"] is not None  # the loop, with its own value
        if is_latent_of_loop and has_run and after.value is not msg["value"]:
            raise ValueError(
                f"Variable {msg['name']!r} is sampled inside of numpyro.contrib.control_flow, where it is drawn, or "
                f"summed out by phx.marginalize, and cannot be given a value from outside. Give it by "
                f"numpyro.handlers.condition within the model."
            )
        _replace(msg, {**_message(after.complete(), msg), "stop": True})


class _OwnSites(Messenger):
    """Handler for a running tracer's own samples: it sends them to the handlers outside of the tracer."""

    def __init__(self, handler: TracerHandler):
        super().__init__(None)
        self._handler = handler
        self._forwarding = False

    def forward(self, variable: RandomVariable, msg: Message | None = None) -> RandomVariable:
        """Forward a variable; variables that outer handlers sample meanwhile pass all handlers, as in NumPyro."""
        forwarding = self._forwarding
        self._forwarding = True
        try:
            return self._handler.forward(variable, msg)
        finally:
            self._forwarding = forwarding

    def process_message(self, msg: Message) -> None:
        if not self._forwarding and msg["type"] in SITES:
            _replace(msg, {**_message(self.forward(_variable(msg), msg), msg), "stop": True})


def _apply(message: Message) -> None:
    try:
        apply_stack(message)
    except (AssertionError, NotImplementedError):
        if message["type"] == "sample" and message["value"] is None:
            _variable(message).complete()  # its error says why the variable cannot be drawn
        raise


def _message(variable: RandomVariable, like: Message | None = None) -> Message:
    """Return a variable as NumPyro's message, with the fields of `like` that only handlers read."""
    common = {"name": variable.name, "value": variable.value}
    entry = _Ours(
        axes=variable.axes,
        natural=variable.natural,
        parameter=variable.parameter,
        given=variable.is_given,
        centring=variable.centring,
        density_at=(variable.logit, variable.residual, variable.value),
        set_to=variable.set_to,
    )
    if variable.parameter is not None:  # a deterministic site, whose value may be set later
        like = {"args": (), "cond_indep_stack": [], **(like or {}), "kwargs": {"rng_key": variable.key}}
        return {**like, **common, "type": "deterministic", "fn": _no_value, "phalanx": entry}
    if variable.distribution is None:
        return {"cond_indep_stack": [], **(like or {}), **common, "type": "deterministic", "phalanx": entry}
    auxiliary = {"is_auxiliary": True} if is_term(variable.distribution) else {}
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
        "phalanx": entry,
    }


def _variable(message: Message) -> RandomVariable:
    """Return a message of type sample or deterministic as a random variable."""
    name = message["name"]
    value = message["value"]
    entry = message.get("phalanx", {})
    if (parameter := entry.get("parameter")) is not None:
        return RandomVariable(name, None, value, key=message["kwargs"].get("rng_key"), parameter=parameter)
    plates = tuple((frame.name, frame.dim, frame.size) for frame in message["cond_indep_stack"])
    if message["type"] == "deterministic":
        _check_deterministic(name, value)
        natural = entry.get("natural")
        set_to = entry.get("set_to")
        return RandomVariable(name, None, value, observed=True, natural=natural, set_to=set_to, plates=plates)
    distribution = message["fn"]
    kwargs = message["kwargs"]
    if value is None and kwargs.get("sample_shape"):
        distribution = distribution.expand((*kwargs["sample_shape"], *distribution.batch_shape))
    logit, residual, of_value = entry.get("density_at", (None, None, None))
    if of_value is not value:  # a handler gave the variable another value
        logit = residual = None
    if value is not None and (message["cond_indep_stack"] or "phalanx" not in message):
        shape = (*distribution.batch_shape, *distribution.event_shape)
        rows = len(distribution.batch_shape)
        dims = {dim for _, dim, _ in plates}
        value, logit, residual = (
            x if x is None else _broadcast(x, shape, rows, dims) for x in (value, logit, residual)
        )
    scale = 1.0 if message["scale"] is None else message["scale"]
    axes = entry.get("axes", ())
    key = kwargs.get("rng_key")
    is_observed = bool(message["is_observed"])
    suggested = value is not None and not is_observed and not entry.get("given", False)
    return RandomVariable(
        name,
        distribution,
        value,
        observed=is_observed,
        axes=axes,
        scale=scale,
        key=key,
        set_to=entry.get("set_to"),
        suggested=suggested,
        logit=logit,
        centring=entry.get("centring"),
        residual=residual,
        plates=plates,
    )


def _no_value(**_: Any) -> None:
    """Return None, the value of a parameter before a handler or its initial value sets it."""


def _broadcast(value: ArrayLike, shape: tuple[int, ...], batch_dims: int, plates: set[int]) -> ArrayLike:
    """Return `value`, broadcast to a variable's shape where it has fewer elements: along plates, or if it is a number.

    Args:
        value: the value.
        shape: the shape, batch + event.
        batch_dims: number of batch dimensions.
        plates: dimensions of the plates, counted from the end of the batch.
    """
    value_shape = jnp.shape(value)
    if len(value_shape) > len(shape) or value_shape == shape:
        return value
    full_shape = (1,) * (len(shape) - len(value_shape)) + value_shape
    lacking = [dim for dim, (mine, theirs) in enumerate(zip(full_shape, shape, strict=True)) if mine != theirs]
    if any(full_shape[dim] != 1 for dim in lacking):
        return value  # the check of shapes reports it
    along = {dim - batch_dims for dim in lacking}
    if value_shape and not along <= plates:
        return value
    # rows that the value has in another dimension than the plate
    elsewhere = [n for dim, n in enumerate(full_shape[:batch_dims]) if n > 1 and dim - batch_dims not in plates]
    if any(shape[dim] in elsewhere for dim in lacking):
        return value
    return jnp.broadcast_to(jnp.reshape(jnp.asarray(value), full_shape), shape)


def _replace(message: Message, by: Message) -> None:
    """Replace the fields of a message in place, so that all holders of the message see it."""
    fields = dict(by)
    message.clear()
    message.update(fields)
