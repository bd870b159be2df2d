"""What is left of a request with beam search: vLLM passes few of its fields on to the beams."""

from typing import NamedTuple

from mockserve.protocol.asked.sampling import MAX_CHOICES, Sampling, check_sampling
from mockserve.protocol.errors import ApiError, bad_value, late

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
