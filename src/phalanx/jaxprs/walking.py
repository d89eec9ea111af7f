"""Traversal of jaxprs: the programs that each higher-order primitive calls, with their operands and results.

`parts_of` is the only function that knows the parameters of jit, cond, scan, while, and functions with derivatives of
their own. An `Interpreter` follows a program equation by equation: a subclass defines the value of a constant, and the
values of an equation's results given those of its operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.typing import ArrayLike

from phalanx.mesh.compatibility.jax_internals import scan_sizes

V = TypeVar("V")

Program = ClosedJaxpr | Jaxpr
Atom = Var | Literal


def words(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


CALLS = words("jit pjit closed_call core_call remat remat2 checkpoint")
"""Primitives that only call a program."""

CUSTOM = words("custom_jvp_call custom_vjp_call")
"""Primitives that call a program which has derivatives of its own."""

ELEMENTWISE = words(
    """abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj
    convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma
    igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul mulhi
    ne neg nextafter not one_minus_square or polygamma population_count pow random_gamma_grad real reduce_precision
    regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin
    sinh sqrt square stop_gradient sub tan tanh xor zeta"""
)
"""Primitives whose results have an entry for each entry of their operands; some operands of `clamp` and `select_n` may
be scalars."""

_OF_ENTRIES = ("reduce", "scatter", "select_and")
"""Prefixes of primitives whose programs combine two entries and are not called with the operands."""


class Call(NamedTuple):
    """Program from all operands to all results of an equation.

    Attributes:
        program: the program.
        has_rule: True if the equation only calls the program (CALLS and CUSTOM), so that an interpreter may follow it.
    """

    program: Program
    has_rule: bool


class Cond(NamedTuple):
    """Programs of which the first operand selects one; it gets the other operands."""

    branches: Sequence[ClosedJaxpr]


class Scan(NamedTuple):
    """A program from constants, carry and one row of each other operand to carry and one row of each other result."""

    body: ClosedJaxpr
    constants: int
    carried: int

    def split(self, values: Sequence[V]) -> tuple[list[V], list[V], list[V]]:
        """Split operands into constants, carry and arrays of rows."""
        return _split_in_three(values, self.constants, self.carried)


class While(NamedTuple):
    """A test and a body, each with constants of its own, and a common carry."""

    test: ClosedJaxpr
    body: ClosedJaxpr
    of_test: int
    of_body: int

    def split(self, values: Sequence[V]) -> tuple[list[V], list[V], list[V]]:
        """Split operands into constants of the test, constants of the body, and carry."""
        return _split_in_three(values, self.of_test, self.of_body)


def aval_of(atom: Atom) -> ShapedArray:
    """Return the shape and type of an operand or result, which JAX declares as an abstract value of any kind."""
    aval: Any = atom.aval
    return aval


def parts_of(equation: JaxprEqn) -> Call | Cond | Scan | While | None:
    """Return the programs that an equation calls with its operands; None if it calls no program with them."""
    name = equation.primitive.name
    params = equation.params
    if name == "cond":
        return Cond(params["branches"])
    if name == "scan":
        return Scan(params["jaxpr"], *scan_sizes(params))
    if name == "while":
        return While(params["cond_jaxpr"], params["body_jaxpr"], params["cond_nconsts"], params["body_nconsts"])
    if name.startswith(_OF_ENTRIES):
        return None
    for program in inner_programs(equation):  # the first is the forward program, others are derivatives
        jaxpr = opened(program)[0]
        if (len(jaxpr.invars), len(jaxpr.outvars)) == (len(equation.invars), len(equation.outvars)):
            return Call(program, name in CALLS | CUSTOM)
    return None


class Interpreter(Generic[V]):
    """An interpretation of a program: a value of type V for each of its variables."""

    def constant(self, value: ArrayLike) -> V:
        """Return the value of a literal, or of an array that a program closes over."""
        raise NotImplementedError

    def primitive(self, equation: JaxprEqn, inputs: list[V]) -> list[V]:
        """Return the values of the results of an equation that is not followed inside."""
        raise NotImplementedError

    def call(self, equation: JaxprEqn, parts: Call, inputs: list[V]) -> list[V]:
        """Return the values of the results of a call."""
        return self.run(parts.program, inputs)

    def cond(self, equation: JaxprEqn, parts: Cond, inputs: list[V]) -> list[V]:
        """Return the values of the results of a choice between programs."""
        return self.primitive(equation, inputs)

    def scan(self, equation: JaxprEqn, parts: Scan, inputs: list[V]) -> list[V]:
        """Return the values of the results of a loop over rows."""
        return self.primitive(equation, inputs)

    def while_loop(self, equation: JaxprEqn, parts: While, inputs: list[V]) -> list[V]:
        """Return the values of the results of a loop with a test."""
        return self.primitive(equation, inputs)

    def named(self, variable: Var, value: V) -> V:
        """Return the value that a variable gets."""
        return value

    def equations(self, jaxpr: Jaxpr) -> Sequence[JaxprEqn]:
        """Return the equations of a program that are followed."""
        return jaxpr.eqns

    def run(self, program: Program, inputs: Sequence[V]) -> list[V]:
        """Return the values of a program's outputs, given those of its inputs."""
        jaxpr, constants = opened(program)
        values: dict[Any, V] = {}

        def write(variables: Sequence[Var], new_values: Sequence[V]) -> None:
            values.update({v: self.named(v, x) for v, x in zip(variables, new_values, strict=True)})

        def read(atoms: Sequence[Atom]) -> list[V]:
            return [self.constant(a.val) if isinstance(a, Literal) else values[a] for a in atoms]

        write([*jaxpr.constvars, *jaxpr.invars], [*map(self.constant, constants), *inputs])
        for equation in self.equations(jaxpr):
            write(equation.outvars, self.equation(equation, read(equation.invars)))
        return read(jaxpr.outvars)

    def equation(self, equation: JaxprEqn, inputs: list[V]) -> list[V]:
        """Return the values of the results of an equation."""
        parts = parts_of(equation)
        if parts is None:
            return self.primitive(equation, inputs)
        enter: Any = {Call: self.call, Cond: self.cond, Scan: self.scan, While: self.while_loop}[type(parts)]
        return enter(equation, parts, inputs)


def settled(carry: list[V], turn: Callable[[list[V]], list[V]], join: Callable[[V, V], V]) -> list[V]:
    """Return the fixed point of a loop's carry; `join` combines the values of two turns."""
    while (after := [join(a, b) for a, b in zip(carry, turn(carry), strict=True)]) != carry:
        carry = after
    return carry


def opened(program: Program) -> tuple[Jaxpr, Sequence[ArrayLike]]:
    """Return the jaxpr of a program and the constants that it closes over."""
    return (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())


def inner_programs(equation: JaxprEqn) -> list[Program]:
    """Return the programs in an equation's parameters, closed ones with their constants.

    `jax.extend.core.jaxprs_in_params` drops the constants.
    """
    values = [v for p in equation.params.values() for v in (p if isinstance(p, tuple | list) else (p,))]
    return [value for value in values if isinstance(value, ClosedJaxpr | Jaxpr)]


def all_equations(program: Program) -> Iterator[JaxprEqn]:
    """Yield the equations of a program, and those of the programs that they call."""
    for equation in program.eqns:
        yield equation
        yield from equations_within(equation)


def equations_within(equation: JaxprEqn) -> Iterator[JaxprEqn]:
    """Yield the equations of the programs that an equation calls."""
    for program in inner_programs(equation):
        yield from all_equations(program)


def constants_within(program: Program) -> list[ArrayLike]:
    """Return the constants of a program and of all programs that it calls."""
    inner = (p for equation in all_equations(program) for p in inner_programs(equation))
    return [constant for p in (program, *inner) for constant in opened(p)[1]]


def needed_equations(jaxpr: Jaxpr, outputs: Sequence[Atom]) -> list[JaxprEqn]:
    """Return the equations that some outputs need."""
    variables = {a for a in outputs if not isinstance(a, Literal)}
    equations = []
    for equation in reversed(jaxpr.eqns):
        if variables.intersection(equation.outvars):
            variables.update(a for a in equation.invars if not isinstance(a, Literal))
            equations.append(equation)
    return equations[::-1]


def pruned(program: ClosedJaxpr, outputs: Iterable[int]) -> ClosedJaxpr:
    """Return a program with only these outputs, without the equations and constants that they do not need."""
    jaxpr = program.jaxpr
    outvars = [jaxpr.outvars[number] for number in outputs]
    equations = needed_equations(jaxpr, outvars)
    variables = {a for a in (*outvars, *(a for e in equations for a in e.invars)) if not isinstance(a, Literal)}
    constants = {v: c for v, c in zip(jaxpr.constvars, program.consts, strict=True) if v in variables}
    small_jaxpr = jaxpr.replace(constvars=[*constants], outvars=outvars, eqns=equations)
    return ClosedJaxpr(small_jaxpr, [*constants.values()])


def alone(equation: JaxprEqn) -> Callable[..., list[Array]]:
    """Return an equation as a function of those of its operands that are not literals."""
    atoms = [atom for atom in equation.invars if not isinstance(atom, Literal)]
    jaxpr = _no_program().replace(invars=atoms, outvars=list(equation.outvars), eqns=[equation])
    return jaxpr_as_fun(ClosedJaxpr(jaxpr, []))


def not_literal(equation: JaxprEqn, values: Sequence[V]) -> list[V]:
    """Return those of `values`, one for each operand of an equation, whose operands are not literals."""
    return [v for atom, v in zip(equation.invars, values, strict=True) if not isinstance(atom, Literal)]


def axes_named(equation: JaxprEqn) -> tuple[str, ...]:
    """Return the mesh axes that an equation names."""
    axes = equation.params.get("axes", equation.params.get("axis_name", ()))
    return tuple(axis for axis in (axes if isinstance(axes, tuple | list) else (axes,)) if isinstance(axis, str))


def extent(program: ClosedJaxpr) -> tuple[int, np.dtype]:
    """Return the size of the largest array that a program makes, and the least precise floating-point type in it."""
    shapes = [aval_of(v) for e in all_equations(program) for v in e.outvars if hasattr(v.aval, "shape")]
    types = [jnp.dtype(a.dtype) for a in shapes if jnp.issubdtype(a.dtype, jnp.floating)]
    widest = max((math.prod(a.shape) for a in shapes), default=0)
    return widest, max(types, key=lambda t: float(jnp.finfo(t).eps), default=jnp.dtype(jnp.result_type(float)))


@cache
def _no_program() -> Jaxpr:
    return jax.make_jaxpr(lambda: ())().jaxpr


def _split_in_three(values: Sequence[V], first: int, second: int) -> tuple[list[V], list[V], list[V]]:
    return list(values[:first]), list(values[first : first + second]), list(values[first + second :])
