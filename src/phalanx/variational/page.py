"""The report of a fit: one HTML file that needs nothing beside it."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.diagnostics import Verdict
from phalanx.report.figures import png
from phalanx.report.files import file_to_write
from phalanx.variational.pictures import bound_figure, marginal_figure, weight_figure

if TYPE_CHECKING:
    from phalanx.variational.result import Fit

_NOTES = {
    "Evidence lower bound": "Each step's estimate, and its running mean. That it looks flat does not say that it is at "
    "the top: whether the guide still changes is looked at apart.",
    "Importance weights": "What the draws of the guide weigh under the model, from the lightest to the heaviest. Where "
    "a few weigh as much as all others together, the guide misses a part of the posterior.",
    "Marginals": "The elements that weighting moves most: as the guide draws them, and weighted by the model.",
}


def write_page(fit: Fit, path: str | PathLike[str]) -> Path:
    """Write the report of a fit as one self-contained HTML file."""
    file = file_to_write("report", path, "fit.html")
    weights, values = fit.judged
    verdict, evidence = fit.verdict(), fit.evidence()
    figures = {
        "Evidence lower bound": bound_figure(fit.losses.elbo),
        "Importance weights": weight_figure(weights),
        "Marginals": marginal_figure(values, weights),
    }
    pictures = "\n".join(_picture(title, png(figure)) for title, figure in figures.items() if figure is not None)
    facts = {
        "log evidence": f"{evidence.log_evidence:,.3f} ± {evidence.error:.2g}",
        "ELBO": f"{evidence.elbo:,.3f} ± {evidence.elbo_error:.2g}",
        "k-hat": f"{evidence.k_hat:.2f}",
        "steps": f"{fit.steps:,}",
        "learning": f"{fit.timing.sampling:.2f} s",
        "compiling": f"{fit.timing.compile:.2f} s",
    }
    record = fit.record
    what = {
        "guide": record.kernel, "model": record.model, "data": "; ".join(f"{k}: {v}" for k, v in record.data.items()),
        "latent variables": "; ".join(f"{k}: {v}" for k, v in record.latents.items()),
        "devices": ", ".join(record.devices), "seed": str(record.seed),
        "versions": ", ".join(f"{k} {v}" for k, v in record.versions.items()),
    }  # fmt: skip
    css = files("phalanx.report").joinpath("page.css").read_text(encoding="utf-8")
    title = f"Fit of {record.model}"
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{css}</style>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1><p>{escape(f"{record.kernel} · {record.started}")}</p></header>
<section>{_verdict(verdict)}
<div class="cards">
{"".join(_card(label, value) for label, value in facts.items())}</div></section>
{pictures}
<section><h2>What was run where</h2>
<dl>{"".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in what.items() if v)}</dl>
<pre>{escape(record.source)}</pre></section>
<footer>Written by Phalanx {escape(record.versions.get("phalanx", ""))}</footer>
</main>
</body>
</html>
"""
    file.write_text(page, encoding="utf-8")
    return file


def _verdict(verdict: Verdict) -> str:
    good = "good" if verdict.good else "warn"
    found = [
        f'<li class="warn">{escape(finding.problem)} <em>Try {escape(finding.advice)}.</em></li>'
        for finding in verdict.findings
    ]
    passed = [f'<li class="good">{escape(words)}</li>' for words in verdict.passed]
    items = "\n".join([*found, *passed])
    return f'<p class="verdict {good}">{escape(verdict.headline)}</p>\n<ul class="findings">\n{items}</ul>'


def _card(label: str, value: str) -> str:
    return (
        f'<div class="card unknown"><div class="label">{escape(label)}</div>'
        f'<div class="value">{escape(value)}</div></div>\n'
    )


def _picture(title: str, image: bytes) -> str:
    data = b64encode(image).decode("ascii")
    return (
        f'<section><h2>{title}</h2>\n<p class="note">{_NOTES[title]}</p>\n'
        f'<img alt="{title}" src="data:image/png;base64,{data}"></section>'
    )
