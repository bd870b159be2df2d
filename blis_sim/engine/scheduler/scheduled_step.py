"""A composed step: the sequences that may join it, the tokens that sequences compute in it, and the sums that a latency
model sees.

`BatchGrowth`: until a batch of some size has been sampled, memory for it is missing, and providing it waits for
everything that the GPU was given. Seen in recordings of a server on which load came suddenly: first tokens came
together with those of the next step as long as batches grew, and hardly ever later. That memory is the cause is
inferred.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from blis_sim.engine.batch_shape import BatchShape, new_shape
from blis_sim.engine.sequence import Sequence

NO_DISPLACED: list[Sequence] = []
"""Result of `prepare` where no sequence loses its place. The list is never changed."""


class Admission(Enum):
    """Whether a waiting sequence may join the batch."""

    NOW = 0
    LATER = 1
    """The request must wait, but requests behind it may join."""
    BLOCKED = 2
    """Too few KV blocks are free for the request, so that those behind it wait, too."""


def num_external_tokens(sequence: Sequence) -> int:
    """Return the tokens that another instance computed, 0 after a preemption. The last token is computed here."""
    external = sequence.request.external
    if external is None or sequence.num_preemptions:
        return 0
    return min(external.num_tokens, sequence.num_tokens - 1)


@dataclass(slots=True)
class ScheduledTokens:
    """Tokens that one sequence computes in a step, and whether the step will sample a token for it."""

    sequence: Sequence
    num_tokens: int
    context_tokens: int
    """Computed before the step, those in flight included."""
    known_tokens: int
    """Prompt and output that existed when the step was composed."""
    samples: bool


ScheduledStep: TypeAlias = tuple[int, int, list[ScheduledTokens], list[Sequence]]
"""Number of sequences of the cohort that decode, sum of their contexts, tokens of other sequences, and newcomers to
the cohort, which compute their whole prompts."""

NO_TOKENS: list[ScheduledTokens] = []
"""Tokens of steps in which only the cohort and newcomers to it compute. The list is never changed."""
NO_NEWCOMERS: list[Sequence] = []
"""Newcomers of all other steps. The list is never changed."""


def shape_of(step: ScheduledStep, recent_prompt_tokens: int) -> BatchShape:
    """Return the shape of a step for the latency model."""
    num_decodes, context, tokens, newcomers = step
    if tokens or not newcomers:
        return batch_shape(tokens, num_decodes, context, recent_prompt_tokens)
    if len(newcomers) == 1:  # as mostly
        new = newcomers[0].input_tokens
        work = new * new
        return new_shape(BatchShape, (1, new, work, 0, 0, work, num_decodes, context, recent_prompt_tokens))
    num_tokens = squares = 0
    for sequence in newcomers:
        new = sequence.input_tokens
        num_tokens += new
        squares += new * new
    figures = len(newcomers), num_tokens, squares, 0, 0, squares, num_decodes, context, recent_prompt_tokens
    return new_shape(BatchShape, figures)


def batch_shape(
    tokens: list[ScheduledTokens], num_decodes: int, decode_contexts: int, recent_prompt_tokens: int
) -> BatchShape:
    """Return the sums over a step's tokens and `num_decodes` more decodes. Cost: O(tokens)."""
    prefills = new_tokens = squares = contexts = context_work = prompt_work = 0
    for each in tokens:
        new, context = each.num_tokens, each.context_tokens
        if context < each.sequence.input_tokens or new > 1:
            prefills += 1
            new_tokens += new
            squares += new * new
            contexts += context
            context_work += new * context
            prompt_work += new * each.known_tokens
        elif new:
            num_decodes += 1
            decode_contexts += context
    recent = recent_prompt_tokens if new_tokens else 0
    return BatchShape(
        prefills, new_tokens, squares, contexts, context_work, prompt_work, num_decodes, decode_contexts, recent
    )


def last_token(sequence: Sequence) -> ScheduledTokens:
    """Return the token of a cohort member as `ScheduledTokens`."""
    return ScheduledTokens(sequence, 1, 0, 0, samples=True)


def batch_order(tokens: ScheduledTokens) -> int:
    """Orders the tokens of a step as the sequences stand in the batch."""
    return tokens.sequence.running_number


class BatchGrowth:
    """The largest batch so far, in multiples of `multiple` requests."""

    __slots__ = ("_most", "_multiple")

    def __init__(self, multiple: int) -> None:
        self._multiple = multiple
        self._most = 0

    def is_exceeded(self, step: ScheduledStep) -> bool:
        """Return whether a step with prompts samples for more requests than any before; it then counts as the
        largest."""
        num_decodes, _, tokens, newcomers = step
        if not tokens and not newcomers:
            return False
        num_requests = num_decodes + len(newcomers) + sum(each.samples for each in tokens)
        if num_requests <= self._most:
            return False
        self._most = -(-num_requests // self._multiple) * self._multiple
        return True
