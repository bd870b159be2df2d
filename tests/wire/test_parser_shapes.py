"""The events of a stream under each parser are those of a genuine vLLM server, and so are the items of whole replies.

`parser_shapes.csv` is what `workshop.vllm_oracle.wire_search.shapes` wrote down by parser and question: the deltas of
a chat stream, equal ones in a row as one, and the kinds of the events or items of a response and a message. A row that
has a reason is one in which ours differs, and why.
"""

import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.wire.plain_http import call
from tests.wire.serving import running_server
from workshop.vllm_oracle.wire_search.questions import shape_questions
from workshop.vllm_oracle.wire_search.said import Parsers
from workshop.vllm_oracle.wire_search.shapes import reply_shape

TABLE = Path(__file__).parent / "parser_shapes.csv"


class Shape(NamedTuple):
    """The reply of the genuine server."""

    kind: str
    parser: str
    question: str
    shape: str
    reason: str


def _groups() -> Iterator[tuple[str, str, Sequence[Shape]]]:
    rows = [Shape(**row) for row in csv.DictReader(TABLE.read_text().splitlines())]
    for (kind, parser), group in itertools.groupby(rows, key=lambda row: (row.kind, row.parser)):
        yield kind, parser, list(group)


GROUPS = list(_groups())


@pytest.mark.parametrize(("kind", "parser", "rows"), GROUPS, ids=[f"{kind}-{parser}" for kind, parser, _ in GROUPS])
def test_events_are_those_of_vllm(kind: str, parser: str, rows: Sequence[Shape]) -> None:
    parsers = {"calls": Parsers(tool=parser), "reasoning": Parsers(reasoning=parser)}.get(kind)
    parsers = Parsers(*parser.split("+")) if parsers is None else parsers
    settings: dict[str, Any] = {"default_output_tokens": 6, "default_reasoning_tokens": 5}
    settings |= {"tool_call_extra_probability": 0.0}
    if parsers.tool:
        settings |= {"enable_auto_tool_choice": True, "tool_call_parser": parsers.tool}
    if parsers.reasoning:
        settings |= {"reasoning_parser": parsers.reasoning}
    with running_server(**settings) as server:
        found = {
            question.name: reply_shape(call(server, "POST", question.path, question.body).body.decode())
            for question in shape_questions(parsers)
        }
    assert {row.question for row in rows} == set(found)
    wrong = [row for row in rows if (found[row.question] == row.shape) == bool(row.reason)]
    assert not wrong, [(row, found[row.question]) for row in wrong]
