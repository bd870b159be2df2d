"""What a model says, stretch by stretch, and what becomes of it when it is cut into tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from mockserve.content.answer import Answer, Delta, Kind
from mockserve.content.stops import stopped
from mockserve.content.tokens.split import Split, whole_characters
from mockserve.content.tokens.tokenizer import Tokenizer
from mockserve.protocol.asked.sampling import Sampling
from mockserve.protocol.bodies import Ending


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one kind. With `shown`, the client gets that text instead, whole, when the stretch is complete."""

    kind: Kind
    text: str
    call: int = 0
    shown: str | None = None


@dataclass(frozen=True, slots=True)
class Performance:
    """How a script is to be said: in which vocabulary, within how many tokens, and under which sampling fields."""

    tokenizer: Tokenizer
    sampling: Sampling
    budget: int
    names_function: bool = False
    """Whether the client named the function to call: it then asked for no more, and the answer simply stops."""


def perform(script: Sequence[Segment], how: Performance) -> Answer:
    """The script as an answer: cut at the budget or at a stop, else ended by the end marker.

    With `ignore_eos`, or below `min_tokens`, end markers follow without text, as from a model that has said it all.
    """
    script = [_readable(each) for each in script]
    said = how.tokenizer.split("".join(each.text for each in script))
    answer = stopped(*_ended(said, how), how.sampling)
    answer = answer._replace(
        deltas=sorted_by_kind(answer.texts, script),
        num_reasoning_tokens=_num_reasoning_tokens(answer.token_texts, script),
    )
    if not any(each.kind is Kind.TOOL_NAME for each in script):
        return answer
    num_chars = sum(map(len, answer.texts))
    calls = answer.ending.finish_reason == "stop" and not how.names_function
    ending = Ending("tool_calls", answer.ending.stop_reason) if calls else None
    if num_chars < _chars_to_last_call(script):
        unparsed = _after_reasoning(script)[: num_chars - _reasoning_chars(script)]
        has_name = any(delta.kind is Kind.TOOL_NAME for deltas in answer.deltas or () for delta in deltas)
        return answer._replace(unparsed=unparsed, streamed_ending=ending if has_name else None)
    return answer if ending is None else answer._replace(ending=ending)


def _chars_to_last_call(script: Sequence[Segment]) -> int:
    """How many characters of a script the parser needs to find all of its calls: the last end mark may lack."""
    num_chars = sum(len(each.text) for each in script)
    last = script[-1]
    return num_chars - len(last.text.removeprefix("}")) if last.kind is Kind.MARKUP else num_chars


def _readable(segment: Segment) -> Segment:
    """The segment without characters that no reply can carry."""
    text = whole_characters(segment.text)
    if text == segment.text:
        return segment
    return replace(segment, text=text, shown=None if segment.shown is None else whole_characters(segment.shown))


def _reasoning_chars(script: Sequence[Segment]) -> int:
    """How many characters of a script are reasoning and its marks, which come before all else."""
    kinds = [each.kind for each in script]
    if Kind.REASONING not in kinds:
        return 0
    return sum(len(each.text) for each in script[: kinds.index(Kind.REASONING) + 2])


def _after_reasoning(script: Sequence[Segment]) -> str:
    return "".join(each.text for each in script)[_reasoning_chars(script) :]


def _ended(said: Split, how: Performance) -> tuple[Split, Ending]:
    """What is said within the budget, and how that ends."""
    if said.num_tokens >= how.budget:
        return said.first(how.budget), Ending("length")
    least = how.budget if how.sampling.ignore_eos else max(how.sampling.min_tokens, said.num_tokens) + 1
    num_tokens = min(least, how.budget)
    num_marks = num_tokens - said.num_tokens
    whole = Split([*said.ids, *[how.tokenizer.eos_token_id] * num_marks], [*said.pieces, *[""] * num_marks])
    ends_by_itself = not how.sampling.ignore_eos and least <= how.budget
    return whole, Ending("stop" if ends_by_itself else "length")


def sorted_by_kind(texts: Sequence[str], script: Sequence[Segment]) -> list[tuple[Delta, ...]]:
    """For each token, the readable part of its text by kind. `texts` joined are a beginning of the script."""
    ends = list(accumulate(len(each.text) for each in script))
    deltas: list[tuple[Delta, ...]] = []
    at = 0
    current = 0
    for text in texts:
        until = at + len(text)
        found: list[Delta] = []
        while current < len(script) and at < until:
            segment, end = script[current], ends[current]
            upto = min(until, end)
            delta = _part(segment, at - (end - len(segment.text)), upto - (end - len(segment.text)))
            if delta is not None:
                found.append(delta)
            at = upto
            if at == end:
                current += 1
        deltas.append(tuple(found))
    return deltas


def _part(segment: Segment, start: int, end: int) -> Delta | None:
    """What a client reads of characters `start` to `end` of a segment."""
    if segment.kind is Kind.MARKUP:
        return None
    if segment.shown is not None:
        return Delta(segment.kind, segment.shown, segment.call) if end == len(segment.text) else None
    text = segment.text[start:end]
    return Delta(segment.kind, text, segment.call) if text else None


def _num_reasoning_tokens(token_texts: Sequence[str], script: Sequence[Segment]) -> int:
    """Tokens that begin within reasoning."""
    spans = []
    at = 0
    for segment in script:
        if segment.kind is Kind.REASONING:
            spans.append((at, at + len(segment.text)))
        at += len(segment.text)
    if not spans:
        return 0
    starts = [0, *accumulate(map(len, token_texts))]
    return sum(
        any(first <= start < last for first, last in spans)
        for start, text in zip(starts, token_texts, strict=False)
        if text
    )
