"""Errors in pydantic's own text, where vLLM looks into a list only when it uses it and shows what pydantic says."""

from collections.abc import Sequence
from typing import Any

from mockserve.protocol.errors import ApiError, Problem

PAGES = "https://errors.pydantic.dev/2.14/v"
SHOWN_BEGIN_CHARS, SHOWN_END_CHARS = 25, 24
MOST_SHOWN_CHARS = 50


def unreadable(title: str, problems: Sequence[Problem]) -> ApiError:
    """A value that pydantic cannot read as `title`. The locations of the problems begin with the list's."""
    plural = "" if len(problems) == 1 else "s"
    return ApiError(f"{len(problems)} validation error{plural} for {title}{''.join(map(_shown, problems))}")


def _shown(problem: Problem) -> str:
    kind = type(problem.found).__name__
    value = f"input_value={_cut(problem.found)}, input_type={kind}"
    page = f"    For further information visit {PAGES}/{problem.kind}"
    return f"\n{problem.location}\n  {problem.message} [type={problem.kind}, {value}]\n{page}"


def _cut(value: Any) -> str:
    text = repr(value)
    if len(text) <= MOST_SHOWN_CHARS:
        return text
    return f"{text[:SHOWN_BEGIN_CHARS]}...{text[-SHOWN_END_CHARS:]}"
