"""The body of POST /v1/completions."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from mockserve.protocol.errors import ApiError, Problem, bad_value
from mockserve.protocol.fields import Fields, integer_problem, list_problem, text_problem
from mockserve.protocol.refusals import refuse_contradictions
from mockserve.protocol.sampling import Sampling, read_sampling
from mockserve.protocol.stream_options import Delivery, read_delivery

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 1024

Prompt: TypeAlias = str | list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A parsed completion request. An empty `model` means the first served name; there is at least one prompt."""

    model: str
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    delivery: Delivery
    request_id: str | None = None
    cache_salt: str | None = None


def parse_completion(body: dict[str, Any]) -> CompletionRequest:
    """Raises ApiError for whatever vLLM refuses before it looks at the model."""
    fields = Fields(body)
    delivery = read_delivery(fields)
    refuse_contradictions(body, delivery.stream)
    model = fields.text("model") or ""
    prompts = _read_prompts(fields)
    max_tokens = fields.integer("max_tokens", DEFAULT_MAX_TOKENS)
    num_logprobs = fields.integer("logprobs", 0) or 0
    sampling = read_sampling(fields, max_tokens, "max_tokens", num_logprobs)
    beam_search = fields.flag("use_beam_search")
    suffix = fields.text("suffix")
    request_id = fields.text("request_id")
    cache_salt = fields.text("cache_salt")
    fields.check()
    if beam_search and delivery.stream:
        raise ApiError("Streaming is not currently supported with beam search")
    if suffix is not None:
        raise ApiError("suffix is only supported for models with FIM completion rendering", param="suffix")
    return CompletionRequest(
        model=model, prompts=prompts, sampling=sampling, delivery=delivery, request_id=request_id, cache_salt=cache_salt
    )


def _read_prompts(fields: Fields) -> tuple[Prompt, ...]:
    """A string, a list of strings, token ids or a list of lists of token ids, always as several prompts."""
    value = fields.body.get("prompt")
    if value is None or value == "":
        raise bad_value("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if value == []:
        raise bad_value("You must pass at least one prompt", "prompt")
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        if are_token_ids(value):
            return (value,)
        if all(isinstance(each, str) for each in value) or all(are_token_ids(each) for each in value):
            return _several(value)
    fields.problems += _prompt_problems(value)
    return ()


def _several(prompts: list[Prompt]) -> tuple[Prompt, ...]:
    if len(prompts) > MAX_PROMPTS:
        raise bad_value(f"at most {MAX_PROMPTS} prompts are allowed, got {len(prompts)}.", "prompt")
    if not all(prompts):
        raise bad_value("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    return tuple(prompts)


def are_token_ids(value: Any) -> bool:
    """Whether `value` is a list of non-negative integers."""
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)


def _prompt_problems(value: Any) -> list[Problem]:
    """What is wrong with `value` as each of the four shapes, in the order of vLLM's union."""
    location = "body.prompt"
    not_a_list = list_problem(value, location)
    not_text = text_problem(value, location)
    if not_a_list is not None:
        assert not_text is not None
        return [not_a_list, not_a_list, not_text, not_a_list]
    problems = _token_id_problems(value, location)
    for index, each in enumerate(value):
        inner = list_problem(each, f"{location}.{index}")
        problems += [inner] if inner else _token_id_problems(each, f"{location}.{index}")
    assert not_text is not None
    problems.append(not_text)
    found = (text_problem(each, f"{location}.{index}") for index, each in enumerate(value))
    return problems + [problem for problem in found if problem is not None]


def _token_id_problems(values: list[Any], location: str) -> list[Problem]:
    problems = []
    for index, each in enumerate(values):
        problem = integer_problem(each, f"{location}.{index}")
        if problem is None and float(each) < 0:
            message = "Input should be greater than or equal to 0"
            problem = Problem("greater_than_equal", f"{location}.{index}", message, each, {"ge": 0})
        if problem is not None:
            problems.append(problem)
    return problems
