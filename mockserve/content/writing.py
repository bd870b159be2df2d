"""What is still to be written of an answer, as jobs that run in place or in a worker process."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TypeAlias, TypeVar

from mockserve.content.answer import Answer, Kind
from mockserve.content.constraints.kinds import Constraint, DeferredForm, constrained_text, read_deferred
from mockserve.content.form import AnswerForm
from mockserve.content.script import Segment
from mockserve.content.tool_calls import Function, ToolUse, call_script, check_function
from mockserve.protocol.errors import ApiError, late
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


def form_checks(form: AnswerForm) -> Iterator[Job[object]]:
    """What raises ApiError unless an answer can have the form.

    A deferred demand is read by whatever writes the answer, unless that calls a function instead.
    """
    if form.tools is None:
        return
    if isinstance(form.constraint, DeferredForm):
        yield Job(check_deferred, (form.constraint,), is_small=False)
    for each in form.tools.functions:
        if each.is_strict:
            yield Job(check_function, (each,), each.is_small(form.tools.taste))


def check_deferred(form: DeferredForm) -> None:
    """Raise ApiError unless the demand can be met."""
    read_deferred(form.demand)


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
