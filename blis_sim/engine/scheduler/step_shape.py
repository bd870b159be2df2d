"""The latency model's view of a step: sums over what its sequences compute."""

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.scheduler.multi_step import ScheduledStep, ScheduledTokens


def shape_of(step: ScheduledStep, recent_prompt_tokens: int) -> BatchShape:
    """Return the latency model's view of a step."""
    num_decodes, context, tokens, newcomers = step
    if tokens or not newcomers:
        return batch_shape(tokens, num_decodes, context, recent_prompt_tokens)
    num_tokens = squares = 0
    for sequence in newcomers:
        new = sequence.request.input_tokens
        num_tokens += new
        squares += new * new
    return BatchShape(len(newcomers), num_tokens, squares, 0, 0, squares, num_decodes, context, recent_prompt_tokens)


def batch_shape(
    tokens: list[ScheduledTokens], num_decodes: int, decode_contexts: int, recent_prompt_tokens: int
) -> BatchShape:
    """The sums over a step's tokens and so many more decodes. Cost: O(tokens)."""
    prefills = new_tokens = squares = contexts = context_work = prompt_work = 0
    for each in tokens:
        new, context = each.num_tokens, each.context_tokens
        if context < each.sequence.request.input_tokens or new > 1:
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
