"""Text and HTML of a posterior or a fit, as an interactive session or a notebook shows it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from phalanx.errors.message_text import count

MOST_ROWS = 20
"""Most variables in the table of a notebook."""


def posterior_in_words(posterior: Any) -> str:
    """Return sizes, variables, divergences and seconds of a run in one line."""
    variables = ", ".join(f"{name}{list(value.shape[2:]) or ''}" for name, value in posterior.draws.items())
    draws = count(posterior.num_draws, "draw")
    if not posterior.num_draws and posterior.record.reduced_draws:
        draws = count(posterior.record.reduced_draws, "draw")
        variables = f"variables reduced by {', '.join(posterior.reduced)}"
    sizes = f"{count(posterior.num_chains, 'chain')} x {draws} of {variables or 'no variables'}"
    end = "; interrupted" if posterior.record.interrupted else ""
    if posterior.held_draws is not None:
        end += f"; this process holds {count(len(posterior.chains), 'chain')}"
    divergences = count(posterior.num_divergences, "divergence")
    return f"Posterior({sizes}; {divergences}; {posterior.timing.total:.1f} s{end})"


def as_html(title: str, facts: Mapping[str, str], arrays: Mapping[str, Any], leading: int = 0) -> str:
    """Return a title, facts, and a table of arrays as HTML.

    Args:
        title: the name of the object.
        facts: texts by name.
        arrays: arrays by variable or parameter.
        leading: leading axes that all arrays share, which the table leaves out.
    """
    from pandas import DataFrame  # as slow to import as all of Phalanx

    arrays_with_shape = {name: value for name, value in arrays.items() if hasattr(value, "shape")}
    rows = {
        name: (str(tuple(np.shape(x)[leading:])), str(x.dtype))
        for name, x in list(arrays_with_shape.items())[:MOST_ROWS]
    }
    table = DataFrame.from_dict(rows, orient="index", columns=["shape", "dtype"]).to_html() if rows else ""
    more = (
        f"<p>{count(len(arrays_with_shape) - MOST_ROWS, 'more variable')}</p>"
        if len(arrays_with_shape) > MOST_ROWS
        else ""
    )
    lines = "<br>".join(f"{escape(name)}: {escape(text)}" for name, text in facts.items() if text)
    return f"<div><strong>{escape(title)}</strong><br>{lines}{table}{more}</div>"


def posterior_as_html(posterior: Any) -> str:
    """Return sizes, seconds and variables of a run as HTML."""
    facts = {
        "model": posterior.record.model,
        "kernel": posterior.record.kernel,
        "draws": f"{count(posterior.num_chains, 'chain')} x {count(posterior.num_draws, 'draw')}",
        "in this process": "" if posterior.held_draws is None else count(len(posterior.chains), "chain"),
        "reduced": count(posterior.record.reduced_draws, "draw") if posterior.record.reduced_draws else "",
        "divergences": f"{posterior.num_divergences:,}",
        "seconds": f"{posterior.timing.total:.1f}",
        "interrupted": "yes, these are the draws so far" if posterior.record.interrupted else "",
    }
    return as_html("Posterior", facts, posterior.draws, leading=2)
