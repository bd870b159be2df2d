"""How long a model thinks before it answers, and what it thinks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from mockserve.content.answer import Kind
from mockserve.content.prose import Prose
from mockserve.content.script import Segment
from mockserve.protocol.errors import ApiError

TOKENS_BY_EFFORT = {"minimal": 25, "low": 100, "medium": 250, "high": 500, "xhigh": 1000, "max": 2000}
"""Tokens of reasoning for each `reasoning_effort`: half of all answers have more."""

TOKENS_SIGMA = 0.3
OFF = "none"
SWITCHES = ("enable_thinking", "thinking")
"""Variables by which chat templates switch thinking off."""

SWITCHED_ON_BY: Mapping[str, Sequence[str]] = {
    "deepseek_v3": SWITCHES,
    "gemma4": ("enable_thinking",),
    "hy_v3": ("reasoning_effort",),
    "poolside_v1": SWITCHES,
}
"""By parser: variables of which one must be set for the parser to look for reasoning; others always do."""
ONE_SWITCH = frozenset(
    {"gemma4", "granite_thinking_parser", "mimo", "minicpmv", "nemotron_v3", "plamo3", "qwen3", "seed_oss"}
)
"""Parsers that look at `enable_thinking` only."""
EFFORTS: Mapping[str, Sequence[str]] = {"k2_horizon": ("high", "medium", "low")}
"""By parser: efforts that it has marks for; others take any."""
SHOWN_AS_CONTENT = "minimax_m2_append_think"
"""The parser that leaves reasoning in the content, with its marks."""
NO_THINKING = (None, False, "", "no_think")

UNLIMITED = -1
START, END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Thinking:
    """How many tokens a model thinks: `median_tokens` more or less, `budget_tokens` at most."""

    median_tokens: int
    budget_tokens: int | None = None
    is_fixed: bool = False
    is_content: bool = False
    """Whether the client reads it as content, with its marks."""

    def num_tokens(self, random: Random, most: int) -> int:
        """A number drawn, at most `most`."""
        drawn = self.median_tokens
        if not self.is_fixed:
            drawn = max(1, round(random.lognormvariate(math.log(max(1, drawn)), TOKENS_SIGMA)))
        limits = [drawn, most] if self.budget_tokens is None else [drawn, most, self.budget_tokens]
        return max(0, min(limits))


def read_thinking(
    body: Mapping[str, Any], variables: Mapping[str, Any], fixed_tokens: int | None, parser: str = ""
) -> Thinking | None:
    """How long to think before the answer to `body`; None not at all. `variables` are those of the chat template.

    Raises ApiError for an effort that the parser has no marks for.
    """
    _check_effort(variables, parser)
    effort = body.get("reasoning_effort")
    switches = SWITCHES[:1] if parser in ONE_SWITCH else SWITCHES
    if effort == OFF or any(variables.get(each) is False for each in switches):
        return None
    needed = SWITCHED_ON_BY.get(parser)
    if needed is not None and all(variables.get(each) in NO_THINKING for each in needed):
        return None
    budget = body.get("thinking_token_budget")
    median = TOKENS_BY_EFFORT.get(str(effort), TOKENS_BY_EFFORT["medium"])
    return Thinking(
        median if fixed_tokens is None else fixed_tokens,
        None if type(budget) is not int or budget == UNLIMITED else budget,
        is_fixed=fixed_tokens is not None,
        is_content=parser == SHOWN_AS_CONTENT,
    )


def _check_effort(variables: Mapping[str, Any], parser: str) -> None:
    efforts = EFFORTS.get(parser)
    if efforts is None:
        return
    effort = variables.get("reasoning_effort", efforts[0])
    if effort not in efforts:
        raise ApiError(f"Unsupported reasoning_effort {effort!r}. Supported values: {', '.join(efforts)}.")


def thoughts(thinking: Thinking, random: Random, prose: Prose, budget: int) -> list[Segment]:
    """The reasoning between its marks. It takes at most half of the budget, so that the answer has the rest."""
    said = prose.write(random, thinking.num_tokens(random, most=budget // 2))
    text = "".join(said.pieces)
    if thinking.is_content:
        return [Segment(Kind.CONTENT, f"{START}{text}{END}")]
    return [Segment(Kind.MARKUP, START), Segment(Kind.REASONING, text), Segment(Kind.MARKUP, END)]
