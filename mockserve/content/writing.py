"""What is still to be written of an answer, as jobs that run in place or in a worker process."""

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TypeAlias, TypeVar

from mockserve.content.answer import Answer, Kind
from mockserve.content.constraints.backends import resolve_backend
from mockserve.content.constraints.demand import Demand
from mockserve.content.constraints.kinds import Constraint, DeferredForm, constrained_text, read_deferred
from mockserve.content.form import AnswerForm
from mockserve.content.script import Segment
from mockserve.content.tool_calls import Function, ToolUse, call_script, tool_demand
from mockserve.options.structured_outputs import StructuredOutputsConfig
from mockserve.protocol.errors import ApiError, late
from mockserve.protocol.json_text import compact_json
from mockserve.workers.job import Job

MOST_TEXT_CHARS = 1_000_000
"""The longest text that is written whole; of a longer one only what fits the answer, if that is not as long."""

Script: TypeAlias = list[Segment]
Write: TypeAlias = Callable[[Random, int], Script]
Written: TypeAlias = tuple[Script, Random]
"""A script, and the random numbers that come after those it took."""

Steps: TypeAlias = Generator[Job[Written], Written | None, Answer]
"""An answer in the making: it asks for its scripts one after the other, and is sent each when it is written."""

Result = TypeVar("Result")


def constrained_script(constraint: Constraint, random: Random, generosity: int) -> Script:
    """A text of the form, as an answer's content."""
    return [Segment(Kind.CONTENT, constrained_text(constraint, random, generosity))]


def content_job(constraint: Constraint, random: Random, generosity: int, most_chars: int) -> Job[Written]:
    """What writes a text of the form: of a long one the first `most_chars` characters."""
    is_small = not isinstance(constraint, DeferredForm)
    return Job(_written, (constrained_script, (constraint,), random, generosity, most_chars), is_small)


def calls_job(
    use: ToolUse, functions: Sequence[Function], random: Random, generosity: int, most_chars: int
) -> Job[Written]:
    """What writes calls of these functions."""
    is_small = all(each.is_small(use.taste) for each in functions)
    called = replace(use, functions=())  # those that are not called need not go to a worker
    return Job(_written, (call_script, (called, functions), random, generosity, most_chars), is_small)


def form_checks(form: AnswerForm) -> Iterator[Job[str | None]]:
    """What finds the backend that constrains an answer, and raises ApiError unless the answer can have the form.

    Forms that were read already need no check. The backend that is found last counts.
    """
    if isinstance(form.constraint, DeferredForm):
        yield Job(deferred_backend, (form.constraint,), is_small=False)
    demand = None if form.tools is None else tool_demand(form.tools, form.structured_outputs)
    if demand is not None and form.tools is not None and (form.tools.is_forced or form.constraint is None):
        is_small = all(each.is_small(form.tools.taste) for each in form.tools.functions if each.is_strict)
        yield Job(tool_backend, (compact_json(demand.value), demand.config), is_small)


def deferred_backend(form: DeferredForm) -> str | None:
    """The backend of a demand. Raises ApiError unless the demand can be met."""
    return read_deferred(form).backend


def tool_backend(tag: bytes, config: StructuredOutputsConfig) -> str:
    """The backend of the structural tag, as JSON, that calls are held to. Raises ApiError when there is none."""
    try:
        return resolve_backend(Demand("structural_tag", json.loads(tag), config))
    except ApiError as error:
        raise late(error) from None


def advanced(steps: Steps, written: Written | None) -> Job[Written] | Answer:
    """The next job of an answer, or the answer once there is none."""
    try:
        return steps.send(written)
    except StopIteration as finished:
        answer: Answer = finished.value
        return answer


def _written(
    write: Callable[..., Script], arguments: tuple[object, ...], random: Random, generosity: int, most_chars: int
) -> Written:
    script = write(*arguments, random, generosity)
    num_chars = sum(len(each.text) for each in script)
    if num_chars <= MOST_TEXT_CHARS:
        return script, random
    if most_chars > MOST_TEXT_CHARS:
        raise too_big()
    return _first_chars(script, most_chars), random


def _first_chars(script: Script, most_chars: int) -> Script:
    kept: Script = []
    for each in script:
        if len(each.text) >= most_chars:
            return [*kept, Segment(each.kind, each.text[:most_chars], each.call)]
        kept.append(each)
        most_chars -= len(each.text)
    return kept


def too_big() -> ApiError:
    """The refusal of a demand beyond the limits, in the words of vLLM's compiler about its own."""
    return late(
        ApiError("Grammar error: initial lexer configuration (grammar) too big (limit for this grammar: 1000000)")
    )
