"""The parts of an answer in their order: reasoning and its length, text, tool calls; and their split into tokens."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from typing import Any

from mockserve.generation.answer import Answer, CutCalls, Delta, Kind, apply_stops
from mockserve.generation.prose import Prose
from mockserve.generation.tokenizer import Split, Tokenizer, whole_characters
from mockserve.protocol.bodies import Ending
from mockserve.protocol.errors import ApiError
from mockserve.protocol.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one kind. With `shown`, the client gets `shown` at once in place of the text when the stretch is
    complete."""

    kind: Kind
    text: str
    call: int = 0
    shown: str | None = None


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Settings for writing a script: the vocabulary, the number of tokens, and the sampling fields."""

    tokenizer: Tokenizer
    sampling: SamplingParams
    budget: int
    names_function: bool = False
    """Whether the client named the function to call. The answer then ends after the call, without an end marker."""
    is_parsed: bool = True
    """Whether a parser of the server reads the answer; without one all of it is content."""


def render_tokens(script: Sequence[Segment], options: RenderOptions) -> Answer:
    """Render the script as an answer: cut at the budget or at a stop, else ended by the end marker.

    With `ignore_eos`, or below `min_tokens`, end markers without text follow, as from a model that has no more to
    generate.
    """
    script = [_readable(each) for each in script]
    tokens = options.tokenizer.split("".join(each.text for each in script))
    answer = apply_stops(*_end_within_budget(tokens, options), options.sampling)
    if not options.is_parsed:
        return answer
    answer = answer._replace(
        deltas=sorted_by_kind(answer.texts, script),
        num_reasoning_tokens=_num_reasoning_tokens(answer.token_texts, script),
    )
    if not any(each.kind is Kind.TOOL_NAME for each in script):
        return answer
    num_chars = sum(map(len, answer.texts))
    calls = answer.ending.finish_reason == "stop" and not options.names_function
    ending = Ending("tool_calls", answer.ending.stop_reason) if calls else None
    if num_chars < _chars_to_last_call(script):
        has_name = any(delta.kind is Kind.TOOL_NAME for deltas in answer.deltas or () for delta in deltas)
        return answer._replace(cut=_cut_calls(script, num_chars), streamed_ending=ending if has_name else None)
    return answer if ending is None else answer._replace(ending=ending)


def _chars_to_last_call(script: Sequence[Segment]) -> int:
    """Return the number of characters of a script within which the parser finds all calls, with or without the last end
    mark."""
    num_chars = sum(len(each.text) for each in script)
    last = script[-1]
    return num_chars - len(last.text.removeprefix("}")) if last.text.endswith(">") else num_chars


def _cut_calls(script: Sequence[Segment], num_chars: int) -> CutCalls:
    """Return the calls of a script that is cut after `num_chars` characters."""
    ends = list(accumulate(len(each.text) for each in script))
    num_begun = num_complete = 0
    for place, segment in enumerate(script):
        if segment.kind is Kind.TOOL_NAME:
            mark = script[place - 1].text if place else ""
            start = ends[place] - len(segment.text) - len(mark)
            num_begun += num_chars >= start + mark.find(">") + 1
        elif segment.kind is Kind.TOOL_ARGUMENTS:
            # The brace behind the arguments ends the call.
            num_complete += num_chars > ends[place]
    text = _after_reasoning(script)[: max(0, num_chars - _reasoning_chars(script))]
    return CutCalls(text, num_complete, num_begun > num_complete)


def _readable(segment: Segment) -> Segment:
    """Return the segment without characters that UTF-8 cannot encode."""
    text = whole_characters(segment.text)
    if text == segment.text:
        return segment
    return replace(segment, text=text, shown=None if segment.shown is None else whole_characters(segment.shown))


def _reasoning_chars(script: Sequence[Segment]) -> int:
    """Return the number of characters of a script that are reasoning and its marks, which precede all other text."""
    kinds = [each.kind for each in script]
    if Kind.REASONING not in kinds:
        return 0
    return sum(len(each.text) for each in script[: kinds.index(Kind.REASONING) + 2])


def _after_reasoning(script: Sequence[Segment]) -> str:
    return "".join(each.text for each in script)[_reasoning_chars(script) :]


def _end_within_budget(tokens: Split, options: RenderOptions) -> tuple[Split, Ending]:
    """Return the text within the budget, and how it ends."""
    if tokens.num_tokens >= options.budget:
        return tokens.first(options.budget), Ending("length")
    least = options.budget if options.sampling.ignore_eos else max(options.sampling.min_tokens, tokens.num_tokens) + 1
    num_tokens = min(least, options.budget)
    num_marks = num_tokens - tokens.num_tokens
    whole = Split([*tokens.ids, *[options.tokenizer.eos_token_id] * num_marks], [*tokens.pieces, *[""] * num_marks])
    ends_by_itself = not options.sampling.ignore_eos and least <= options.budget
    return whole, Ending("stop" if ends_by_itself else "length")


def sorted_by_kind(texts: Sequence[str], script: Sequence[Segment]) -> list[tuple[Delta, ...]]:
    """Return for each token the readable part of its text by kind. `texts` joined are a beginning of the script.

    Equal tokens within a segment share one delta: a long answer has few different words, and separate objects for each
    token would take three times the memory.
    """
    ends = list(accumulate(len(each.text) for each in script))
    deltas: list[tuple[Delta, ...]] = []
    shared: dict[tuple[int, str], tuple[Delta, ...]] = {}
    at = 0
    current = 0
    for text in texts:
        until = at + len(text)
        if text and current < len(script) and until < ends[current] and script[current].shown is None:
            known = shared.get((current, text))
            if known is None:
                segment = script[current]
                whole = (Delta(segment.kind, text, segment.call),)
                known = shared[current, text] = () if segment.kind is Kind.MARKUP else whole
            deltas.append(known)
            at = until
            continue
        found: list[Delta] = []
        # A segment without text comes with the end of the one before it.
        while current < len(script) and (at < until or not script[current].text):
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
    """Return the text that a client reads of characters `start` to `end` of a segment."""
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


TOKENS_BY_EFFORT = {"minimal": 25, "low": 100, "medium": 250, "high": 500, "xhigh": 1000, "max": 2000}
"""Median number of reasoning tokens for each `reasoning_effort`."""

TOKENS_SIGMA = 0.3
EFFORT_OFF = "none"
THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables of chat templates that disable thinking."""

REQUIRED_VARIABLES: Mapping[str, Sequence[str]] = {
    "deepseek_v3": THINKING_SWITCHES,
    "gemma4": ("enable_thinking",),
    "hy_v3": ("reasoning_effort",),
    "poolside_v1": THINKING_SWITCHES,
}
"""Variables by parser, of which one must be set for the parser to parse reasoning. Other parsers always do."""
ENABLE_THINKING_ONLY = frozenset(
    {"gemma4", "granite_thinking_parser", "mimo", "minicpmv", "nemotron_v3", "plamo3", "qwen3", "seed_oss"}
)
"""Parsers that read only `enable_thinking`."""
SUPPORTED_EFFORTS: Mapping[str, Sequence[str]] = {"k2_horizon": ("high", "medium", "low")}
"""Efforts that each parser supports; other parsers take any."""
SHOWN_AS_CONTENT = "minimax_m2_append_think"
"""The parser that leaves reasoning in the content, with its marks."""
NO_THINKING = (None, False, "", "no_think")

UNLIMITED = -1
START, END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Thinking:
    """Number of reasoning tokens: `median_tokens` on average, `budget_tokens` at most."""

    median_tokens: int
    budget_tokens: int | None = None
    is_fixed: bool = False
    is_shown_as_content: bool = False
    """Whether the reply has the reasoning as content, with its marks."""

    def num_tokens(self, random: Random, most: int) -> int:
        """Draw the number of reasoning tokens, at most `most`."""
        drawn = self.median_tokens
        if not self.is_fixed:
            drawn = max(1, round(random.lognormvariate(math.log(max(1, drawn)), TOKENS_SIGMA)))
        limits = [drawn, most] if self.budget_tokens is None else [drawn, most, self.budget_tokens]
        return max(0, min(limits))


def read_thinking(
    body: Mapping[str, Any], variables: Mapping[str, Any], fixed_tokens: int | None, parser: str = ""
) -> Thinking | None:
    """Return the length of the reasoning before the answer to `body`; None for no reasoning.

    `variables` are the variables of the chat template. Raises ApiError for an effort that the parser does not support.
    """
    _check_effort(variables, parser)
    effort = body.get("reasoning_effort")
    switches = THINKING_SWITCHES[:1] if parser in ENABLE_THINKING_ONLY else THINKING_SWITCHES
    if effort == EFFORT_OFF or any(variables.get(each) is False for each in switches):
        return None
    needed = REQUIRED_VARIABLES.get(parser)
    if needed is not None and all(variables.get(each) in NO_THINKING for each in needed):
        return None
    budget = body.get("thinking_token_budget")
    median = TOKENS_BY_EFFORT.get(str(effort), TOKENS_BY_EFFORT["medium"])
    return Thinking(
        median if fixed_tokens is None else fixed_tokens,
        None if type(budget) is not int or budget == UNLIMITED else budget,
        is_fixed=fixed_tokens is not None,
        is_shown_as_content=parser == SHOWN_AS_CONTENT,
    )


def _check_effort(variables: Mapping[str, Any], parser: str) -> None:
    efforts = SUPPORTED_EFFORTS.get(parser)
    if efforts is None:
        return
    effort = variables.get("reasoning_effort", efforts[0])
    if effort not in efforts:
        raise ApiError(f"Unsupported reasoning_effort {effort!r}. Supported values: {', '.join(efforts)}.")


def reasoning_segments(thinking: Thinking, random: Random, prose: Prose, budget: int) -> list[Segment]:
    """Return the reasoning between its marks. Reasoning takes at most half of the budget, to leave room for the
    answer."""
    tokens = prose.write(random, thinking.num_tokens(random, most=budget // 2))
    text = "".join(tokens.pieces)
    if thinking.is_shown_as_content:
        return [Segment(Kind.CONTENT, f"{START}{text}{END}")]
    return [Segment(Kind.MARKUP, START), Segment(Kind.REASONING, text), Segment(Kind.MARKUP, END)]
