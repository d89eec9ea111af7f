"""A guide beside a model, traced on the data of a call of `phx.fit`, with all checks that need no compiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.density.imputation import impute
from phalanx.inputs.arguments import check_outcome_named, columns_left_out, left_out_in_words
from phalanx.inputs.dataframe_input import columns_of
from phalanx.language.tracing import Program
from phalanx.run.checks import check_not_traced
from phalanx.run.describe import source_of
from phalanx.variational import checks
from phalanx.variational.guides.guide import Guide
from phalanx.variational.guides.guide_and_model import Pair, alignment_of
from phalanx.variational.monitoring.recording import names_for
from phalanx.variational.monitoring.stream import Stream, rows_of, stream_of
from phalanx.variational.options import FitOptions
from phalanx.variational.start import pair_of
from phalanx.variational.unbounded_scales import check_bounded


@dataclass(frozen=True)
class TracedFit:
    """A guide beside its model, traced on data.

    Attributes:
        pair: guide and model.
        stream: batches, of data that come in batches; None of data in memory.
        names: names of axes, levels and columns, as fields of a record.
        notices: sentences to show before the fit.
    """

    pair: Pair
    stream: Stream | None
    names: Mapping[str, Any]
    notices: tuple[str, ...]

    @classmethod
    def of(cls, model: Program, guide: Guide | Callable[..., Any] | None, data: Any, options: FitOptions) -> TracedFit:
        """Check the data, trace the model, and put the guide beside it.

        Raises:
            TypeError, ValueError: when data, guide, model and options do not fit; the message names the argument.
        """
        is_whole = data is None or isinstance(data, Mapping) or columns_of(data) is not None
        left_out = columns_left_out(model, data) if is_whole else []
        notices = [left_out_in_words(left_out)]
        if options.missing is not None:
            if not is_whole:
                raise ValueError(
                    "missing: entries of data that come in batches cannot be imputed; give all rows at once."
                )
            model, data, imputed = impute(model, data, options.mesh)
            notices.extend(imputed)
        num_rows = rows_of(data, options.num_rows)
        stream = stream_of(data, num_rows, options.batch_size)
        data = data if stream is None else stream.first
        pair = pair_of(model, guide, data, options.mesh, options.batch_size, num_rows, options.init)
        if left_out and not pair.problem.whole.observes:
            check_outcome_named(model, left_out)
        check_not_traced("phx.fit", data)
        words = {"guide": pair.guide.name, "the text of the guide": source_of(guide), **options.in_words(num_rows)}
        pair.problem.check_same("phx.fit", **words)
        checks.check_particles(options.num_particles, pair)
        checks.check_steps_to_save(options.policy, pair)
        checks.check_learned(pair.learned, pair.guide.name)
        names = names_for(pair.problem, options.dims, options.coords)
        if options.num_steps:
            check_bounded(pair)
        checks.check_estimator(options.objective, alignment_of(pair).scored, options.num_particles)
        checks.check_fixed(options.optimizer, options.objective, pair)
        checks.check_matching(options.optimizer, options.objective, pair)
        return cls(pair, stream, names, tuple(filter(None, notices)))
