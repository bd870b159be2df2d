"""What a reply reports and when, as the server and the request together say: delivery, intervals, log-probabilities."""

from collections.abc import Sequence
from functools import partial

from mockserve.planning.beams import CANDIDATES_PER_BEAM
from mockserve.protocol.asked.sampling import Sampling
from mockserve.protocol.asked.wanted import Delivery, Wanted
from mockserve.protocol.logprob_shapes import ScoredPrompt
from mockserve.replies.choice_writer import NewScorer, Scorer
from mockserve.replies.generation import Generation, Generations, LateGenerations, PlannedPrompt
from mockserve.replies.reply_set import AT_THE_END
from mockserve.serving.service import Service

PROMPT_SEED = 0x5EED
"""Tells the log-probabilities of a prompt from those of its answer."""

CHOICES_AT_ONCE = 256
LONG_US = 10_000
"""What the event loop may take to write a reply."""

TOKEN_US = 0.2
SCORE_US = 10.0
CANDIDATE_US = 4.0
"""What a token costs in a reply, what its log-probability costs, and that of each candidate beside it."""

FULL_VOCABULARY = 100_000


def delivery_of(service: Service, asked: Delivery) -> Delivery:
    """What the client asked for, with the token counts that the server forces on every stream."""
    if asked.stream and service.options.replies.enable_force_include_usage:
        return Delivery(True, True, True)
    return asked


def interval_of(service: Service, sampling: Sampling, wanted: Wanted) -> int:
    """Tokens per event: the larger of what the server and the request want. Beams are known only at the end."""
    if sampling.use_beam_search:
        return AT_THE_END
    return max(service.options.replies.stream_interval, wanted.stream_interval)


def named_by_ids(service: Service, wanted: Wanted) -> bool:
    """Whether log-probabilities name tokens by their ids: as the request says, else as the server does."""
    return service.options.replies.return_tokens_as_token_ids if wanted.tokens_as_ids is None else wanted.tokens_as_ids


def num_top(sampling: Sampling, extra: int) -> int | None:
    """How many candidates of a step are shown, `extra` beside those asked for; None is all of them."""
    if sampling.logprob_token_ids or sampling.num_logprobs == -1:
        return None
    return (sampling.num_logprobs or 0) + extra


def new_scorers(service: Service, sampling: Sampling) -> NewScorer | None:
    """What makes the log-probabilities of each choice, if any are wanted."""
    if sampling.num_logprobs is None:
        return None
    return partial(_new_scorer, service, sampling)


def prompt_scores(
    service: Service, sampling: Sampling, token_ids: Sequence[int], generations: Generations
) -> ScoredPrompt | None:
    """Log-probabilities of the prompt's tokens, if they are wanted."""
    wanted = sampling.num_prompt_logprobs
    if wanted is None:
        return None
    seed = generations[0].seed ^ PROMPT_SEED
    return _scorer(service, seed, _number(service, wanted), is_greedy=False).score_all(token_ids)


def is_long_reply(sampling: Sampling, prompts: Sequence[PlannedPrompt], repeats_prompts: bool) -> bool:
    """Whether a reply takes so long to write that the event loop must not do it.

    `repeats_prompts`: each choice tells the text or the ids of its prompt.
    """
    num_choices = sum(len(prompt.generations) for prompt in prompts)
    if num_choices > CHOICES_AT_ONCE or any(isinstance(each.generations, LateGenerations) for each in prompts):
        return True
    answer_us = TOKEN_US + (0 if sampling.num_logprobs is None else _scoring_us(sampling.num_logprobs))
    prompt_us = TOKEN_US * repeats_prompts
    if sampling.num_prompt_logprobs is not None:
        prompt_us += _scoring_us(sampling.num_prompt_logprobs)
    return (
        sum(
            len(prompt.token_ids) * prompt_us + each.answer.num_tokens * answer_us
            for prompt in prompts
            for each in prompt.generations
        )
        > LONG_US
    )


def _scoring_us(num_top: int) -> float:
    return SCORE_US + (FULL_VOCABULARY if num_top == -1 else num_top) * CANDIDATE_US


def _new_scorer(service: Service, sampling: Sampling, generation: Generation) -> Scorer:
    if sampling.use_beam_search:
        planner = service.planner
        num_candidates = CANDIDATES_PER_BEAM * sampling.n
        candidates = planner.composer.prose.token_ids
        return Scorer(planner.tokenizer, candidates, generation.seed, False, num_candidates, is_beam=True)
    wanted = _number(service, sampling.num_logprobs or 0)
    return _scorer(service, generation.seed, wanted, sampling.is_greedy, sampling.logprob_token_ids)


def _scorer(service: Service, seed: int, wanted: int, is_greedy: bool, chosen_ids: Sequence[int] = ()) -> Scorer:
    planner = service.planner
    candidates = planner.composer.prose.token_ids
    return Scorer(planner.tokenizer, candidates, seed, is_greedy, wanted, chosen_ids)


def _number(service: Service, wanted: int) -> int:
    return service.planner.tokenizer.vocabulary_size if wanted == -1 else wanted
