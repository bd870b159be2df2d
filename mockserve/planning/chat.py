"""Planning of replies to chat and response requests, and conversion of conversations to token ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from blis_sim.engine.request import Medium as PlacedMedium
from mockserve.generation.tool_calls import ToolConstraint, forced_schema, shown_tools, tool_constraint_of
from mockserve.generation.writing import OutputSpec, chat_output_spec
from mockserve.in_flight_request import new_id, unix_time
from mockserve.metrics.server import CHAT, RESPONSES
from mockserve.planning.prompts import (
    check_unicode,
    check_with_model,
    delivery_of,
    interval_of,
    is_long_reply,
    new_scorers,
    num_top,
    prompt_scores,
    read_beams,
    returns_tokens_as_ids,
    text_ids,
    with_extra_arguments,
)
from mockserve.protocol.bodies import Choice, Usage
from mockserve.protocol.completions.bodies import ChatBodies
from mockserve.protocol.completions.content_parts import MEDIA_MARK
from mockserve.protocol.completions.messages import Medium, has_media, media_of
from mockserve.protocol.completions.requests import ChatRequest, parse_chat
from mockserve.protocol.errors import ApiError
from mockserve.protocol.refusals import refuse_unavailable
from mockserve.protocol.responses.bodies import ResponseObject, raw_message
from mockserve.protocol.responses.input_items import chat_messages
from mockserve.protocol.responses.items import output_items
from mockserve.protocol.responses.requests import ResponseRequest, chat_body
from mockserve.protocol.sampling import SamplingParams, check_max_tokens
from mockserve.replies.call_style import PLAIN, CallStyle, Fillers, ReasoningStyle, call_style, filling
from mockserve.replies.chat_writer import ChatShape
from mockserve.replies.choice_writer import PlannedPrompt
from mockserve.replies.reply_set import Accounting, ParsingCounter, ReplyJob
from mockserve.serving.model import Adapter, ServedModel
from mockserve.serving.planner import Planner, RequestContext
from mockserve.serving.response_store import ResponseStore


def conversation_ids(
    planner: Planner,
    text: str,
    media: Sequence[Medium],
    tokens_per_medium: int,
    add_special_tokens: bool,
    sampling: SamplingParams,
) -> list[int]:
    """Return the ids of a conversation, with `tokens_per_medium` ids for each image or recording."""
    if not media:
        return text_ids(planner, text, add_special_tokens, sampling)
    return placed_conversation(planner, text, media, tokens_per_medium, add_special_tokens)[0]


def placed_conversation(
    planner: Planner,
    text: str,
    media: Sequence[Medium],
    tokens_per_medium: int,
    add_special_tokens: bool,
) -> tuple[list[int], tuple[PlacedMedium, ...]]:
    """Return the ids of a conversation with media, and the positions of the media.

    Media whose position the chat template does not show are at the end.
    """
    check_unicode(text)
    stretches = [
        planner.encode(stretch, add_special_tokens and number == 0)
        for number, stretch in enumerate(text.split(MEDIA_MARK))
    ]
    planner.check_length(sum(map(len, stretches)) + len(media) * tokens_per_medium)
    ids: list[int] = []
    places: list[PlacedMedium] = []
    shown, others = media[: len(stretches) - 1], media[len(stretches) - 1 :]
    for number, stretch in enumerate(stretches):
        ids += stretch
        for medium in shown[number : number + 1] if number < len(stretches) - 1 else others:
            places.append(PlacedMedium(len(ids), tokens_per_medium, (medium.modality, medium.source)))
            ids += medium_ids(planner, medium, tokens_per_medium)
    planner.check_ids(ids)
    return ids, tuple(places)


def medium_ids(planner: Planner, medium: Medium, count: int) -> list[int]:
    """Return ids of an image or a recording: equal sources have equal ids, so that their blocks can be shared."""
    first = crc32(medium.source.encode("utf-8", "surrogatepass"))
    return [(first + number) % planner.tokenizer.vocabulary_size for number in range(count)]


async def plan_chat(
    model: ServedModel,
    chat: ChatRequest,
    body: dict[str, Any],
    reply_id: str,
    adapter: Adapter | None = None,
    priority: int | None = None,
    refuses_unavailable: bool = True,
    request_type: str = CHAT,
    num_prompts: int = 1,
) -> ReplyJob:
    """Plan the reply. Raises ApiError for refusals that depend on the model. `priority` overrides that of the body.

    Other routes than chat completions accept fields for which the server has no parser and ignore them. `request_type`
    is the route in metrics, and `num_prompts` the number of conversations answered together.
    """
    model.queue.check(chat.sampling.n)
    if refuses_unavailable:
        refuse_unavailable(body, model.answers.calls_tools)
    planner = model.planner
    check_max_tokens(chat.sampling, planner.max_model_len)
    media = _media(model, chat)
    sampling = planner.defaults.applied(chat.sampling, body)
    beams = read_beams(sampling, model.options.replies.max_logprobs) if sampling.use_beam_search else None
    sampling = sampling if beams is None else beams.sampling
    text = planner.conversations.prompt(body)
    is_tokenized = planner.conversations.makes_token_ids(body)
    per_medium, adds_marks = model.options.replies.tokens_per_medium, chat.add_special_tokens and not is_tokenized
    placed = placed_conversation(planner, text, media, per_medium, adds_marks) if media else None
    ids, places = placed or (text_ids(planner, text, adds_marks, sampling), ())
    form = _form(model, body, text)
    params = chat.common.kv_transfer_params
    check_with_model(model, body, sampling, chat.common, [len(ids)], searches_beams=beams is not None)
    form = form if beams is None else form._replace(constraint=None)
    external = model.external_prompt(params, len(ids))
    priority = chat.common.priority if priority is None else priority
    context = RequestContext(reply_id, chat.common.cache_salt, adapter, priority, external, media=places)
    generations = await planner.plan(ids, sampling, with_extra_arguments(context, body), form, num_prompts=num_prompts)
    prompt = PlannedPrompt(
        token_ids=ids,
        text=text.replace(MEDIA_MARK, ""),
        generations=generations,
        scores=prompt_scores(model, sampling, ids, generations),
        shows_text=chat.response_options.prompt_text and not is_tokenized,
    )
    delivery = delivery_of(model, chat.delivery)
    return ReplyJob(
        bodies=_bodies(model, chat, reply_id, adapter, delivery.include_usage),
        new_writer=_shape(model, chat, body, form)._replace(parsing=_parsing(model, form, request_type)).writer,
        delivery=delivery,
        prompts=[prompt],
        accounting=_accounting(model, media, searches_beams=beams is not None),
        templates=model.templates,
        stream_interval=interval_of(model, sampling, chat.response_options),
        num_announced=None if beams is None else beams.num_announced,
        is_empty=beams is not None and beams.is_empty,
        kv_transfer_params=model.handover(params, generations),
        is_long=is_long_reply(sampling, [prompt], repeats_prompts=False),
        sampling=sampling,
    )


def _media(model: ServedModel, chat: ChatRequest) -> list[Medium]:
    """Return the images and recordings of a conversation. Raises ApiError if the model does not support media."""
    if model.options.replies.tokens_per_medium:
        return media_of(chat.messages)
    if has_media(chat.messages):
        raise ApiError(f"{model.names[0]} is not a multimodal model")
    return []


def _bodies(
    model: ServedModel, chat: ChatRequest, reply_id: str, adapter: Adapter | None, ends_with_usage: bool
) -> ChatBodies:
    return ChatBodies(
        id=reply_id,
        created=unix_time(),
        model=model.reply_name(adapter),
        fingerprint=model.fingerprint,
        ends_with_usage=ends_with_usage,
        role=chat.role,
        echoed=chat.echoed,
        shows_prompt_ids=chat.response_options.token_ids,
        weight_version=model.weight_version if _shows_weights(chat) else None,
    )


def _form(model: ServedModel, body: Mapping[str, Any], text: str) -> OutputSpec:
    """Return the form of the answer. Raises ApiError for forced calls whose functions have conflicting definitions."""
    forced_calls_schema(model, body)
    return chat_output_spec(body, text, model.answers, model.planner.composer.uses_prompt_text)


def forced_calls_schema(model: ServedModel, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the schema of forced calls; None if no call is forced or the parser reads the calls itself."""
    if tool_constraint_of_chat(model, body) is not ToolConstraint.SCHEMA:
        return None
    return forced_schema(body["tools"], body.get("tool_choice"), body.get("parallel_tool_calls"))


def tool_constraint_of_chat(model: ServedModel, body: Mapping[str, Any]) -> ToolConstraint:
    """Return the constraint of a chat's tools on the answer, which replaces any other constraint of the chat."""
    if not model.answers.calls_tools:
        return ToolConstraint.NOTHING
    return tool_constraint_of(model.options.content.tools.tool_call_parser, body)


def _style(model: ServedModel, form: OutputSpec, chat: ChatRequest, body: Mapping[str, Any]) -> CallStyle:
    """Return the style of the parser of calls for an answer; without one, the parser of reasoning determines the last
    event."""
    if form.tools is None:
        ends_alone = not model.answers.calls_tools and chat.includes_reasoning
        after_words = model.reasoning_style.after_words
        return PLAIN._replace(fillers=Fillers(after_words=after_words)) if ends_alone else PLAIN
    parser = model.options.content.tools.tool_call_parser
    return call_style(parser, body.get("tool_choice", "auto"), reasons=form.thinking is not None)


def _reasoning_style(model: ServedModel, body: Mapping[str, Any]) -> ReasoningStyle:
    """Return the style of reasoning. At the end of reasoning a parser of calls takes over, which may send an event."""
    content = model.options.content
    style = model.reasoning_style
    if not (model.answers.calls_tools and style.call_parser_reads_end):
        return style
    choice = body.get("tool_choice", "auto") if body.get("tools") else "none"
    calls = PLAIN if choice == "none" else call_style(content.tools.tool_call_parser, choice)
    return style._replace(end=filling(calls.after_reasoning))


def _shape(model: ServedModel, chat: ChatRequest, body: Mapping[str, Any], form: OutputSpec) -> ChatShape:
    forces_tools = body.get("tools") and body.get("tool_choice") not in (None, "none", "auto")
    return ChatShape(
        role=chat.role,
        new_scorer=new_scorers(model, chat.sampling),
        num_top=num_top(chat.sampling, extra=0),
        tokens_as_ids=returns_tokens_as_ids(model, chat.response_options),
        tokens_have_bytes=not chat.sampling.use_beam_search,
        shows_token_ids=chat.response_options.token_ids,
        includes_reasoning=chat.includes_reasoning,
        empty_content="" if forces_tools else None,
        calls=_style(model, form, chat, body),
        reasoning=_reasoning_style(model, body),
        num_earlier_calls=sum(len(each.get("tool_calls") or ()) for each in body["messages"]),
    )


def _parsing(model: ServedModel, form: OutputSpec, request_type: str) -> ParsingCounter | None:
    metrics = model.tool_parsing
    if metrics is None or form.tools is None:
        return None
    return ParsingCounter(
        metrics, request_type, after_reasoning=model.options.content.reasoning.reasoning_parser is not None
    )


def _accounting(model: ServedModel, media: list[Medium], searches_beams: bool) -> Accounting:
    options = model.options
    return Accounting(
        shows_prompt_details=options.replies.enable_prompt_tokens_details and not searches_beams,
        counts_reasoning=options.content.reasoning.reasoning_parser is not None,
        shows_metrics=options.replies.enable_per_request_metrics,
        block_size_tokens=model.block_size_tokens,
        media_tokens=_media_tokens(media, options.replies.tokens_per_medium),
    )


def _media_tokens(media: list[Medium], tokens_per_medium: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for medium in media:
        counts[medium.modality] = counts.get(medium.modality, 0) + tokens_per_medium
    return counts


def _shows_weights(chat: ChatRequest) -> bool:
    return chat.response_options.weight_versions and not chat.sampling.use_beam_search


OUTPUT_PARAM = "max_output_tokens"


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """A planned response: its object, the job for the engine, and the conversation that it continues."""

    response: ResponseObject
    job: ReplyJob
    messages: Sequence[dict[str, Any]]
    has_parser: bool
    raw: tuple[Any, Any] | None

    def whole(self, choice: Choice, usage: Usage, metrics: dict[str, Any] | None) -> dict[str, Any]:
        """Return the complete response."""
        is_cut = choice.ending.finish_reason == "length"
        items = output_items(choice.content, choice.logprobs, is_cut, self.has_parser, new_id, self.response.tool_names)
        return self.response.body("incomplete" if is_cut else "completed", items, usage, metrics, self.raw)


class RefusedStreamError(Exception):
    """The engine refuses a streamed response: vLLM's stream has begun by then, and is cut."""

    def __init__(self, response: ResponseObject) -> None:
        super().__init__(response.id)
        self.response = response


async def plan_response(
    model: ServedModel, responses: ResponseStore, api_request: ResponseRequest, priority: int | None
) -> ResponsePlan:
    """Plan a response. Raises ApiError for refusals that depend on the model.

    Raises RefusedStreamError for refusals of the engine in a stream.
    """
    adapter = model.check_model(api_request.model)
    messages = conversation(responses, api_request)
    body = chat_body(api_request, messages)
    chat = parse_chat(body, is_typed=False)
    chat = chat._replace(sampling=model.planner.defaults.applied(chat.sampling, body))
    if chat.sampling.max_tokens_param == "max_completion_tokens":
        chat = chat._replace(sampling=replace(chat.sampling, max_tokens_param=OUTPUT_PARAM))
    name = response_id(api_request)
    schema = forced_calls_schema(model, body)
    response = ResponseObject(
        id=name,
        created=unix_time(),
        model=model.reply_name(adapter),
        api_request=_without_form(api_request)
        if tool_constraint_of_chat(model, body) is ToolConstraint.TAG
        else _with_forced_form(api_request, schema),
        sampling=chat.sampling,
        budget=0,
    )
    planned = plan_chat(model, chat, body, name, adapter, priority, refuses_unavailable=False, request_type=RESPONSES)
    try:
        job = await planned
    except ApiError as error:
        if not (error.is_late and api_request.streams) or api_request.in_background:
            raise
        raise RefusedStreamError(replace(response, budget=_budget(model, chat, body))) from error
    accounting = job.accounting._replace(shows_prompt_details=True, counts_reasoning=True)
    prompt = job.prompts[0]
    answer = prompt.generations[0].answer
    raw = None
    if api_request.shows_messages:
        prompt_text = model.planner.tokenizer.decode(prompt.token_ids)
        text = "".join(answer.texts)
        raw = [raw_message(prompt_text, prompt.token_ids)], [raw_message(text, answer.token_ids)]
    budget = prompt.generations[0].request.max_output_tokens or 0
    response = replace(response, budget=budget, kv_transfer_params=job.kv_transfer_params)
    has_parser = model.answers.parses_answers
    return ResponsePlan(response, job._replace(accounting=accounting), messages, has_parser, raw)


def _budget(model: ServedModel, chat: ChatRequest, body: Mapping[str, Any]) -> int:
    """Return the token budget of an answer that the engine refuses to begin."""
    planner = model.planner
    per_medium = model.options.replies.tokens_per_medium
    text = planner.conversations.prompt(body)
    ids = conversation_ids(planner, text, _media(model, chat), per_medium, chat.add_special_tokens, chat.sampling)
    return planner.defaults.output_budget(chat.sampling, len(ids), planner.max_model_len)


def _with_forced_form(api_request: ResponseRequest, schema: Mapping[str, Any] | None) -> ResponseRequest:
    """Return the request with the text format by which vLLM replaces the requested one for calls forced as JSON."""
    if schema is None:
        return api_request
    form = {"type": "json_schema", "name": "tool_calling_response", "schema": schema, "strict": True}
    tools = shown_tools(api_request.body["tools"], schema)
    return replace(api_request, body={**api_request.body, "tools": tools, "text": {"format": form}})


def _without_form(api_request: ResponseRequest) -> ResponseRequest:
    """Return the request without its text format, which vLLM drops if the parser constrains the calls."""
    return replace(api_request, body={**api_request.body, "text": None})


def response_id(api_request: ResponseRequest) -> str:
    """Return the id of a response: the request's, even if it is empty, else a new one."""
    given = api_request.body.get("request_id")
    return f"resp_{new_id()}" if given is None else str(given)


def conversation(responses: ResponseStore, api_request: ResponseRequest) -> list[dict[str, Any]]:
    """Return the messages to answer, including those of the response that the request continues."""
    body = api_request.body
    earlier_id = body.get("previous_response_id")
    if earlier_id is None:
        return chat_messages(body.get("instructions"), body["input"], (), ())
    earlier = responses.find(earlier_id)
    return chat_messages(body.get("instructions"), body["input"], earlier.messages, earlier.body["output"])
