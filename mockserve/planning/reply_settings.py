"""Settings of a reply by server and request: delivery, intervals, log-probabilities, beam search."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from mockserve.protocol.asked.sampling import MAX_CHOICES, Delivery, Sampling, Wanted, check_sampling
from mockserve.protocol.errors import ApiError, bad_value, late
from mockserve.protocol.logprob_shapes import ScoredPrompt
from mockserve.replies.choice_writer import NewScorer, Scorer
from mockserve.replies.generation import Generation, Generations, LateGenerations, PlannedPrompt
from mockserve.replies.reply_set import AT_THE_END
from mockserve.serving.model import ServedModel

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


def delivery_of(model: ServedModel, asked: Delivery) -> Delivery:
    """What the client asked for, with the token counts that the server forces on every stream."""
    if asked.stream and model.options.replies.enable_force_include_usage:
        return Delivery(True, True, True)
    return asked


def interval_of(model: ServedModel, sampling: Sampling, wanted: Wanted) -> int:
    """Tokens per event: the larger of what the server and the request want. Beams are known only at the end."""
    if sampling.use_beam_search:
        return AT_THE_END
    return max(model.options.replies.stream_interval, wanted.stream_interval)


def named_by_ids(model: ServedModel, wanted: Wanted) -> bool:
    """Whether log-probabilities name tokens by their ids: as the request says, else as the server does."""
    return model.options.replies.return_tokens_as_token_ids if wanted.tokens_as_ids is None else wanted.tokens_as_ids


def num_top(sampling: Sampling, extra: int) -> int | None:
    """How many candidates of a step are shown, `extra` beside those asked for; None is all of them."""
    if sampling.logprob_token_ids or sampling.num_logprobs == -1:
        return None
    return (sampling.num_logprobs or 0) + extra


def new_scorers(model: ServedModel, sampling: Sampling) -> NewScorer | None:
    """What makes the log-probabilities of each choice, if any are wanted."""
    if sampling.num_logprobs is None:
        return None
    return partial(_new_scorer, model, sampling)


def prompt_scores(
    model: ServedModel, sampling: Sampling, token_ids: Sequence[int], generations: Generations
) -> ScoredPrompt | None:
    """Log-probabilities of the prompt's tokens, if they are wanted."""
    wanted = sampling.num_prompt_logprobs
    if wanted is None:
        return None
    seed = generations[0].seed ^ PROMPT_SEED
    return _scorer(model, seed, _number(model, wanted), is_greedy=False).score_all(token_ids)


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


def _new_scorer(model: ServedModel, sampling: Sampling, generation: Generation) -> Scorer:
    if sampling.use_beam_search:
        planner = model.planner
        num_candidates = CANDIDATES_PER_BEAM * sampling.n
        candidates = planner.composer.prose.token_ids
        return Scorer(planner.tokenizer, candidates, generation.seed, False, num_candidates, is_beam=True)
    wanted = _number(model, sampling.num_logprobs or 0)
    return _scorer(model, generation.seed, wanted, sampling.is_greedy, sampling.logprob_token_ids)


def _scorer(model: ServedModel, seed: int, wanted: int, is_greedy: bool, chosen_ids: Sequence[int] = ()) -> Scorer:
    planner = model.planner
    candidates = planner.composer.prose.token_ids
    return Scorer(planner.tokenizer, candidates, seed, is_greedy, wanted, chosen_ids)


def _number(model: ServedModel, wanted: int) -> int:
    return model.planner.tokenizer.vocabulary_size if wanted == -1 else wanted


CANDIDATES_PER_BEAM = 2
"""Candidates that each beam asks the engine for; as many log-probabilities must be allowed."""


class Beams(NamedTuple):
    """Sampling fields in force. `num_announced` are the choices of the request.

    `is_empty`: no token is wanted, which leaves one beam without any.
    """

    sampling: Sampling
    num_announced: int
    is_empty: bool


def read_beams(sampling: Sampling, max_logprobs: int) -> Beams:
    """The beams of a request. Stop strings, constraints of sampling and log-probabilities of the prompt mean nothing.

    Raises ApiError for a number of beams that the server does not have.
    """
    if sampling.n < 1:
        raise ApiError(f"beam_width must be at least 1, got {sampling.n}.")
    if sampling.n > MAX_CHOICES:
        raise ApiError(
            f"beam_width must be at most {MAX_CHOICES}, got {sampling.n}. "
            "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
        )
    is_empty = sampling.max_tokens == 0
    kept = Sampling(
        n=1 if is_empty else sampling.n,
        max_tokens=1 if is_empty else sampling.max_tokens,
        max_tokens_param=sampling.max_tokens_param,
        ignore_eos=sampling.ignore_eos,
        temperature=sampling.temperature,
        num_logprobs=sampling.num_logprobs,
        allowed_token_ids=sampling.allowed_token_ids,
        include_stop_str_in_output=sampling.include_stop_str_in_output,
        skip_special_tokens=sampling.skip_special_tokens,
        use_beam_search=True,
        truncate_prompt_tokens=sampling.truncate_prompt_tokens,
        truncation_side=sampling.truncation_side,
    )
    if not is_empty:
        _check_first_step(kept, max_logprobs)
    return Beams(kept, sampling.n, is_empty)


def _check_first_step(sampling: Sampling, max_logprobs: int) -> None:
    """What the engine finds wrong with the requests that beams are made of."""
    try:
        check_sampling(sampling, budget=1)
    except ApiError as error:
        raise late(error) from None
    wanted = CANDIDATES_PER_BEAM * sampling.n
    if -1 != max_logprobs < wanted:
        message = f"Requested sample logprobs of {wanted}, which is greater than max allowed: {max_logprobs}"
        raise late(bad_value(message, "logprobs", wanted))
