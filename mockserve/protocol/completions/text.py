"""The body of POST /v1/completions."""

from typing import Any, NamedTuple, TypeAlias

from mockserve.protocol.asked.sampling import Sampling, read_sampling
from mockserve.protocol.asked.vocabulary_checks import check_logit_bias_keys
from mockserve.protocol.asked.wanted import Common, Delivery, Wanted, read_common, read_delivery, read_wanted
from mockserve.protocol.completions.fields import COMPLETION_FIELDS
from mockserve.protocol.completions.messages import NO_PROMPT_EMBEDS, PROMPT_EMBEDS
from mockserve.protocol.errors import ApiError, bad_value
from mockserve.protocol.reading.body import Fields, check_types
from mockserve.protocol.reading.types import as_integer
from mockserve.protocol.refusals import refuse_completion_contradictions

DEFAULT_MAX_TOKENS = 16

Prompt: TypeAlias = str | list[int]


class CompletionRequest(NamedTuple):
    """A parsed completion request. An empty `model` means the first served name; there is at least one prompt.

    With `echo` the prompt comes before the answer; `only_echoes` leaves the answer out.
    """

    model: str
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    delivery: Delivery
    common: Common = Common()
    wanted: Wanted = Wanted()
    echo: bool = False
    only_echoes: bool = False
    add_special_tokens: bool = True


def parse_completion(body: dict[str, Any]) -> CompletionRequest:
    """Raises ApiError for whatever vLLM refuses before it looks at the model."""
    refuse_completion_contradictions(body)
    check_types(body, COMPLETION_FIELDS)
    fields = Fields(body)
    _refuse_embeds(fields)
    delivery = read_delivery(fields)
    if fields.flag("use_beam_search") and delivery.stream:
        raise ApiError("Streaming is not currently supported with beam search")
    if fields.text("suffix") is not None:
        if fields.flag("echo"):
            raise ApiError("Echo is unsupported with suffix.", param="suffix")
        raise ApiError("suffix is only supported for models with FIM completion rendering", param="suffix")
    max_tokens = fields.integer("max_tokens", DEFAULT_MAX_TOKENS)
    echo = fields.flag("echo")
    only_echoes = echo and max_tokens == 0
    num_logprobs = fields.integer("logprobs")
    sampling = read_sampling(
        fields,
        max_tokens=1 if only_echoes and not fields.flag("use_beam_search") else max_tokens,
        max_tokens_param="max_tokens",
        num_logprobs=num_logprobs,
        num_echoed_logprobs=num_logprobs if echo else None,
    )
    check_logit_bias_keys(body.get("logit_bias"))
    return CompletionRequest(
        model=fields.text("model") or "",
        prompts=_read_prompts(body.get("prompt")),
        sampling=sampling,
        delivery=delivery,
        common=read_common(fields),
        wanted=read_wanted(fields, sampling),
        echo=echo,
        only_echoes=only_echoes,
        add_special_tokens=fields.flag("add_special_tokens", True),
    )


def _refuse_embeds(fields: Fields) -> None:
    """Prompts as embeddings, which no server here takes. An empty list of them is none."""
    given = fields.body.get("prompt_embeds")
    if given is None:
        return
    if fields.flag("echo"):
        raise ApiError("Echo is unsupported with prompt embeds.")
    if fields.body.get("prompt_logprobs") is not None:
        raise ApiError("prompt_logprobs is not compatible with prompt embeds.")
    if given != []:
        raise bad_value(f"{NO_PROMPT_EMBEDS}.", PROMPT_EMBEDS)


def _read_prompts(value: Any) -> tuple[Prompt, ...]:
    """A string, a list of strings, token ids or a list of lists of token ids, always as several prompts."""
    if value == []:
        raise bad_value("You must pass at least one prompt", "prompt")
    if isinstance(value, str):
        return (value,)
    if all(isinstance(each, str) for each in value):
        return tuple(value)
    if all(isinstance(each, list) for each in value):
        return tuple(_as_ids(each) for each in value)
    return (_as_ids(value),)


def _as_ids(values: list[Any]) -> list[int]:
    return [as_integer(each) for each in values]
