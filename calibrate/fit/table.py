"""The answer of `blis fit`: learned coefficients, with those that the recordings do not determine."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from blis_sim.options.provenance import Provenance
from blis_sim.report.report import Report, Section
from blis_sim.report.tables import TextTable
from calibrate.compare import Comparison
from calibrate.fit.learn import LearningResult
from calibrate.fit.terms import Learnable
from calibrate.report import percent, step_cells

IDENTIFIED_SHARE = 0.7
"""A coefficient whose spread is still this share of what was expected has not been learned from the recordings."""

RECORDINGS_TO_ADD: dict[str, str] = {
    "weights": "one request at a time with a long output, and batches of many sizes",
    "layer_us": "the same server with another model: recordings of one model do not separate it from weights",
    "tokens": "prompts of many lengths, 100 to 8,000 tokens",
    "tiles": "prompts of many lengths, 100 to 2,000 tokens, some a few tokens apart",
    "small_tiles": "prompts of many lengths below 1,000 tokens, with token times",
    "attention": "prompts of 4,000 tokens and more",
    "kv": "many requests in flight with long contexts",
    "all_reduce": "prompts of many lengths",
    "decodes": "batches of 100 requests and more, such as a saturated server",
    "burst": "prompts close to each other, with token times",
    "burst_again": "prompts close to each other, with token times",
    "sustained": "steps full of prompts, such as a saturated server",
    "step_us": "one request at a time with a long output",
    "prompt_us": "many short prompts in one step, such as bursts of prompts of 50 tokens",
    "request_us": "batches of 100 requests and more, such as a saturated server",
    "idle_start_us": "requests on an idle server, such as less than one in two seconds",
    "arrival_us": "nothing: only the sum with output_us matters, for which requests on an idle server suffice",
    "arrival_token_us": "prompts of many lengths on an idle server",
    "output_us": "nothing: only the sum with arrival_us matters, for which requests on an idle server suffice",
    "output_request_us": "token times, and batches of many sizes",
    "output_turn_us": "token times (blis observe --record-itl)",
}
"""Recordings from which a coefficient could be learned."""


@dataclass(frozen=True, slots=True)
class Unidentified:
    """A coefficient whose expectation decides: the spread left, as a share of that expected, and what to record."""

    name: str
    share: float
    to_record: str


def unidentified(learned: LearningResult) -> list[Unidentified]:
    """Return the coefficients that recordings did not determine, those that they determine least first."""
    terms = learned.deployed.terms
    found = []
    for name in learned.deployed.learnable():
        share = float(learned.estimate.spreads[terms.place(name)] / terms.expected[name].spread)
        if share > IDENTIFIED_SHARE:
            found.append(
                Unidentified(name, min(share, 1.0), RECORDINGS_TO_ADD.get(name, "prompts and batches of many sizes"))
            )
    return sorted(found, key=lambda each: -each.share)


def fit_report(
    learned: LearningResult,
    deployed: Learnable,
    content: Mapping[str, Any],
    origin: Callable[[], Provenance],
    names_unidentified: bool,
) -> Report:
    """Return the answer of `blis fit`: each coefficient beside what was expected of it, and the errors on requests that
    were held out. `names_unidentified` adds those that the recordings do not determine, and what to record."""

    def rows() -> Iterator[dict[str, Any]]:
        estimate, terms = learned.estimate, deployed.terms
        for name in deployed.learnable():
            place, expected = terms.place(name), terms.expected[name]
            yield {
                "coefficient": name,
                "learned": float(estimate.values[place]),
                "spread": float(estimate.spreads[place]),
                "expected": float(expected.mean),
                "expected_spread": float(expected.spread),
            }

    def sections() -> Iterator[Section]:
        cells = [[name, *map(_number, figures)] for name, *figures in (row.values() for row in rows())]
        yield Section(table=TextTable(("coefficient", "learned", "+-", "expected", "+- "), cells))
        cells = [
            [score.name, str(score.num_requests), *map(_errors, (score.ttft, score.e2e, score.itl))]
            for score in learned.held_out
        ]
        if cells:
            titles = ("held out", "requests", "TTFT MAPE / r", "E2E MAPE / r", "ITL MAPE / r")
            yield Section(table=TextTable(titles, cells))
        of_steps = [
            [name, each.kind, *step_cells(each.comparison)]
            for name, errors in learned.held_out_steps.items()
            for each in errors
        ]
        if of_steps:
            names = ("held out", "steps", "number", "mean, ms", "MAPE", "error of mean")
            yield Section(table=TextTable(names, of_steps, num_left_aligned=2))
        cells = [[each.name, percent(each.share), each.to_record] for each in unidentified(learned)]
        if names_unidentified and cells:
            columns = ("not identified", "spread left", "recordings that would identify it")
            yield Section(table=TextTable(columns, cells, num_left_aligned=3))

    def remarks() -> Iterator[str]:
        if names_unidentified and not unidentified(learned):
            yield "the recordings determine all coefficients"

    return Report(
        title="Coefficients of",
        origin=origin,
        data=lambda: {**content, "not_identified": [asdict(each) for each in unidentified(learned)]},
        rows=rows,
        sections=sections,
        remarks=remarks,
    )


def _errors(comparison: Comparison | None) -> str:
    if comparison is None:
        return "-"
    r = "-" if comparison.pearson_r is None else f"{comparison.pearson_r:.3f}"
    return f"{percent(comparison.mape)} / {r}"


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.0f}"
