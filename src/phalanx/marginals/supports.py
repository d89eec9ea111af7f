"""Lists of the values of discrete variables."""

from __future__ import annotations

import jax
import numpy as np
from numpyro.distributions import Distribution

from phalanx.distributions.constraint_text import kind_of
from phalanx.distributions.independent_entries import entries


def values_of(name: str, distribution: Distribution) -> np.ndarray:
    """Return the values of an entry of a discrete variable.

    Raises:
        ValueError: when they are infinitely many, or not known before the program runs.
    """
    single, kind = entries(distribution), kind_of(distribution)
    if single.event_shape:
        raise ValueError(
            f"phx.marginalize: a value of the discrete variable {name!r} ({kind}) is an array of numbers that depend "
            f"on each other, and is not summed over. Write it by a Categorical variable: the number of the value."
        )
    try:
        with jax.ensure_compile_time_eval():
            return np.asarray(single.enumerate_support(expand=False)).ravel()
    except NotImplementedError as error:
        reason = f" ({error})" if str(error) else ""
        raise ValueError(
            f"phx.marginalize: the discrete variable {name!r} ({kind}) has no finite list of values{reason}, and only "
            f"a finite sum can be computed. Use a Categorical variable over the values that are possible, or name the "
            f"variables to sum out, names=[...]."
        ) from None
    except (jax.errors.JAXTypeError, TypeError):
        raise ValueError(
            f"phx.marginalize: the values of the discrete variable {name!r} ({kind}) depend on other values of the "
            f"program, and their number must be known before it runs. Give the bounds of its support as Python "
            f"numbers, and its shape by .expand(...)."
        ) from None
