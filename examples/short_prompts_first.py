"""A scheduler of one's own: vLLM's rules, but short prompts come first, and a step computes few prompt tokens.

blis run --model qwen3-14b --rate 6 --engine short_prompts_first:ShortPromptsFirst
"""

from blis_sim.engine.context import EngineContext
from blis_sim.engine.scheduler.vllm import VllmScheduler
from blis_sim.engine.sequence import Sequence

SHORT_TOKENS = 256
"""Prompts below this come before all others."""
MOST_PROMPT_TOKENS = 512
"""Most prompt tokens of a step."""


def short_first(sequence: Sequence) -> tuple[object, ...]:
    return (sequence.input_tokens >= SHORT_TOKENS, sequence.arrived_at, sequence.request.id)


class ShortPromptsFirst(VllmScheduler):
    """Prompts share `MOST_PROMPT_TOKENS` of each step; requests that decode do not wait for them."""

    def __init__(self, context: EngineContext, reports_steps: bool = True) -> None:
        super().__init__(context, reports_steps)
        self._order = short_first
        self.takes_newcomers = False  # a shortcut that computes whole prompts

    def next_tokens(self, sequence: Sequence) -> int:
        num_tokens = super().next_tokens(sequence)
        return min(num_tokens, self._prompt_budget()) if _computes_prompt(sequence) else num_tokens

    def _admission_tokens(self, sequence: Sequence, start: int) -> int:
        return min(super()._admission_tokens(sequence, start), self._prompt_budget())

    def _prompt_budget(self) -> int:
        """Return the prompt tokens that the step being composed has left."""
        granted = sum(count for sequence, count in self._granted.items() if _computes_prompt(sequence))
        return max(0, MOST_PROMPT_TOKENS - granted)


def _computes_prompt(sequence: Sequence) -> bool:
    return sequence.num_computed_tokens < sequence.input_tokens
