"""Functions for all planners: prompts as token ids within the model's limits, settings of replies, and beam search."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, overload

from blis_sim.engine.request import Request
from blis_sim.engine.units import LONGEST_DELAY_US, Micros
from mockserve.generation.tokenizer import Tokenizer
from mockserve.protocol.bodies import ScoredPrompt
from mockserve.protocol.errors import ApiError, EmptyPromptError, bad_value, mark_late
from mockserve.protocol.sampling import (
    MAX_CHOICES,
    Delivery,
    RequestMetadata,
    ResponseOptions,
    SamplingParams,
    check_extra_arguments,
    check_logit_bias_keys,
    check_prompt_start,
    check_sampling,
    check_vocabulary,
    refuse_thinking_budget,
)
from mockserve.reply.choice_writer import NewScorer, Scorer
from mockserve.reply.reply import AT_THE_END, PlannedChoice, PlannedChoices
from mockserve.serving.model import ServedModel
from mockserve.serving.planner import Planner, check_unicode


def with_extra_arguments(draft: Request, body: Mapping[str, Any]) -> Request:
    """Return the request with the arguments in `vllm_xargs`.

    `slo_e2e_ms` is the target time to the last token; `kv_cache_report_mode` full includes found blocks in KV-cache
    events.
    """
    arguments = body.get("vllm_xargs")
    if not arguments:
        return draft
    reports_found_blocks = arguments.get("kv_cache_report_mode") == "full"
    return draft._replace(slo_e2e_us=_target_e2e_us(arguments), reports_found_blocks=reports_found_blocks)


def extra_args_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a body that vLLM hands to its engine beside the sampling parameters."""
    transfers = {name: body[name] for name in ("kv_transfer_params", "ec_transfer_params") if body.get(name)}
    return {**(body.get("vllm_xargs") or {}), **transfers}


def _target_e2e_us(arguments: Mapping[str, Any]) -> Micros:
    target_ms = arguments.get("slo_e2e_ms")
    if not isinstance(target_ms, int | float) or not 0 < target_ms <= LONGEST_DELAY_US / 1000:
        return 0
    return int(target_ms * 1000)


def check_with_model(
    model: ServedModel,
    body: dict[str, Any],
    sampling: SamplingParams,
    common: RequestMetadata,
    lengths: Sequence[int],
    searches_beams: bool,
) -> None:
    """Raise ApiError, in vLLM's order, for fields that the served model cannot apply to prompts of these lengths.

    For beam search only few fields are checked, as in vLLM.
    """
    if not searches_beams:
        check_logit_bias_keys(body.get("logit_bias"))
    for num_tokens in lengths:
        model.planner.budget(sampling, num_tokens)
    if not searches_beams:
        vocabulary_size = model.planner.vocabulary_size
        check_vocabulary(sampling, body.get("logit_bias"), vocabulary_size, model.options.replies.max_logprobs)
        refuse_thinking_budget(
            body.get("thinking_token_budget"), model.options.content.reasoning.reasoning_parser is not None
        )
        check_extra_arguments(body.get("vllm_xargs"), common.kv_transfer_params)
        for num_tokens in lengths:
            check_prompt_start(common, num_tokens)


@contextmanager
def empty_prompt_last(
    model: ServedModel, body: dict[str, Any], sampling: SamplingParams, common: RequestMetadata, searches_beams: bool
) -> Iterator[None]:
    """Raise ApiError for sampling fields before one for an empty prompt, which vLLM finds in its engine."""
    try:
        yield
    except EmptyPromptError:
        check_with_model(model, body, sampling, common, [0], searches_beams)
        raise


WHOLE_CONTEXT = -1


def truncate_prompt(
    planner: Planner, prompt: str | Sequence[int], truncate_to: int | None, keeps_end: bool, add_special_tokens: bool
) -> list[int]:
    """Return the token ids of a prompt, cut to `truncate_to` of them: -1 is the whole context, None cuts nothing.

    Raises ApiError for a prompt that is too long, empty or has unknown ids.
    """
    limit = planner.max_model_len
    if truncate_to is not None and truncate_to > limit:
        raise ApiError(
            "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller truncation size."
        )
    length = limit if truncate_to == WHOLE_CONTEXT else truncate_to
    if isinstance(prompt, str):
        if length is None:
            planner.check_characters(prompt)
        check_unicode(prompt)
        ids = cut_text(planner.tokenizer, prompt, length, keeps_end, add_special_tokens)
    else:
        ids = list(prompt) if length is None else _cut_to_length(prompt, length, keeps_end)
        vocabulary_size = max(planner.vocabulary_size, planner.tokenizer.vocabulary_size)
        unknown = next((each for each in ids if not 0 <= each < vocabulary_size), None)
        if unknown is not None:
            raise ApiError(f"Token id {unknown} is out of vocabulary")
    if len(ids) > limit:
        raise bad_value(
            f"This model's maximum context length is {limit} tokens. However, your prompt contains at least {limit + 1}"
            " input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            "input_tokens",
            limit + 1,
        )
    if not ids:
        raise ApiError("The decoder prompt cannot be empty")
    return ids


class LazyPrompts(Sequence[list[int]]):
    """Prompts whose parts are joined when one is read, since one long part may belong to thousands of them."""

    @abstractmethod
    def joined(self, index: int) -> list[int]:
        """Return the token ids of one prompt."""

    @abstractmethod
    def lengths(self) -> Iterator[int]:
        """Return the length of each prompt."""

    @overload
    def __getitem__(self, index: int) -> list[int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...

    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [self.joined(each) for each in range(*index.indices(len(self)))]
        return self.joined(index)

    def num_tokens(self) -> int:
        """Return the length of all prompts together."""
        return sum(self.lengths())


def pad_prompt(planner: Planner, ids: list[int], pads: bool) -> list[int]:
    """Return the token ids, with `pads` filled up to the whole context with id 0."""
    return ids + [0] * (planner.max_model_len - len(ids)) if pads else ids


def cut_text(
    tokenizer: Tokenizer, text: str, length: int | None, keeps_end: bool, add_special_tokens: bool
) -> list[int]:
    """Return the token ids of `text`, at most `length`: all special tokens, and the beginning or the end of the
    text."""
    ids = tokenizer.encode(text, add_special_tokens)
    if length is None or len(ids) <= length:
        return ids
    bare = tokenizer.encode(text) if add_special_tokens else ids
    num_marks = len(ids) - len(bare)
    if num_marks > length:
        return _cut_to_length(ids, length, keeps_end)
    start = next((i for i in range(num_marks + 1) if ids[i : i + len(bare)] == bare), 0)
    return [*ids[:start], *_cut_to_length(bare, length - num_marks, keeps_end), *ids[start + len(bare) :]]


def _cut_to_length(ids: Sequence[int], length: int, keeps_end: bool) -> list[int]:
    if len(ids) <= length:
        return list(ids)
    return list(ids[len(ids) - length :] if keeps_end else ids[:length])


PROMPT_SEED = 0x5EED
"""Separates the random numbers of a prompt's log-probabilities from the answer's."""


def delivery_of(model: ServedModel, api_request: Delivery) -> Delivery:
    """Return the requested delivery, with token counts if the server adds them to every stream."""
    if api_request.stream and model.options.replies.enable_force_include_usage:
        return Delivery(True, True, True)
    return api_request


def interval_of(model: ServedModel, sampling: SamplingParams, response_options: ResponseOptions) -> int:
    """Return the tokens per event: the larger interval of server and request. Beams are sent only at the end."""
    if sampling.use_beam_search:
        return AT_THE_END
    return max(model.options.replies.stream_interval, response_options.stream_interval)


def returns_tokens_as_ids(model: ServedModel, response_options: ResponseOptions) -> bool:
    """Whether log-probabilities name tokens by their ids, according to the request, else to the server's flag."""
    return (
        model.options.replies.return_tokens_as_token_ids
        if response_options.tokens_as_ids is None
        else response_options.tokens_as_ids
    )


def num_top(sampling: SamplingParams, extra: int) -> int | None:
    """Return the number of candidates of a step, `extra` beside the requested ones; None is all of them."""
    if sampling.logprob_token_ids or sampling.num_logprobs == -1:
        return None
    return (sampling.num_logprobs or 0) + extra


def new_scorers(model: ServedModel, sampling: SamplingParams) -> NewScorer | None:
    """Return the factory of scorers for each choice, if log-probabilities are requested."""
    if sampling.num_logprobs is None:
        return None
    return partial(_new_scorer, model, sampling)


def prompt_scores(
    model: ServedModel, sampling: SamplingParams, token_ids: Sequence[int], choices: PlannedChoices
) -> ScoredPrompt | None:
    """Return log-probabilities of the prompt's tokens, if they are requested."""
    requested = sampling.num_prompt_logprobs
    if requested is None:
        return None
    seed = choices[0].seed ^ PROMPT_SEED
    return _scorer_for(model, seed, _num_logprobs(model, requested), is_greedy=False).score_all(token_ids)


def _new_scorer(model: ServedModel, sampling: SamplingParams, choice: PlannedChoice) -> Scorer:
    if sampling.use_beam_search:
        planner = model.planner
        num_candidates = CANDIDATES_PER_BEAM * sampling.n
        candidates = planner.composer.prose.token_ids
        return Scorer(planner.tokenizer, candidates, choice.seed, False, num_candidates, is_beam=True)
    requested = _num_logprobs(model, sampling.num_logprobs or 0)
    return _scorer_for(model, choice.seed, requested, sampling.is_greedy, sampling.logprob_token_ids)


def _scorer_for(
    model: ServedModel, seed: int, requested: int, is_greedy: bool, chosen_ids: Sequence[int] = ()
) -> Scorer:
    planner = model.planner
    candidates = planner.composer.prose.token_ids
    return Scorer(planner.tokenizer, candidates, seed, is_greedy, requested, chosen_ids)


def _num_logprobs(model: ServedModel, requested: int) -> int:
    return model.planner.tokenizer.vocabulary_size if requested == -1 else requested


CANDIDATES_PER_BEAM = 2
"""Number of candidates per beam; the server must allow as many log-probabilities."""


class Beams(NamedTuple):
    """Effective sampling fields. `num_announced` is the number of choices of the request.

    `is_empty`: no token is to be generated, which leaves one beam without tokens.
    """

    sampling: SamplingParams
    num_announced: int
    is_empty: bool


def read_beams(sampling: SamplingParams, max_logprobs: int) -> Beams:
    """Return the beams of a request. Stop strings, sampling constraints and the prompt's log-probabilities have no
    effect.

    Raises ApiError for more beams than the server allows.
    """
    if sampling.n < 1:
        raise ApiError(f"beam_width must be at least 1, got {sampling.n}.")
    if sampling.n > MAX_CHOICES:
        raise ApiError(
            f"beam_width must be at most {MAX_CHOICES}, got {sampling.n}. "
            "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
        )
    is_empty = sampling.max_tokens is not None and sampling.max_tokens <= 0
    kept = SamplingParams(
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


def _check_first_step(sampling: SamplingParams, max_logprobs: int) -> None:
    """Raise ApiError as the engine does for the requests that make up beams."""
    try:
        check_sampling(sampling, budget=1)
    except ApiError as error:
        raise mark_late(error) from None
    requested = CANDIDATES_PER_BEAM * sampling.n
    if -1 != max_logprobs < requested:
        message = f"Requested sample logprobs of {requested}, which is greater than max allowed: {max_logprobs}"
        raise mark_late(bad_value(message, "logprobs", requested))
