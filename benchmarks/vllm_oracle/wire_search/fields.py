"""The requests of the search to servers without parsers: odd messages, fields, chat templates and streams."""

from collections.abc import Iterator
from typing import Any

from benchmarks.vllm_oracle.wire_search.questions import CHAT, Question


def field_questions() -> Iterator[Question]:
    """All of them, whole and as streams."""
    for name, path, body in _bodies():
        for stream in (False, True):
            yield Question(f"{name}, {'stream' if stream else 'whole'}", path, {**body, "stream": stream}, {})


def _bodies() -> Iterator[tuple[str, str, dict[str, Any]]]:
    yield (
        "usual",
        CHAT,
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "ignore_eos": True},
    )
