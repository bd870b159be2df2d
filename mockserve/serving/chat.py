"""Planning of replies to chat requests, and conversion of conversations to token ids."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from blis_sim.engine.request import Medium as PlacedMedium
from blis_sim.engine.request import Request as EngineRequest
from mockserve.generation.chat_turns import ChatTemplate, TemplateRequest, Turns
from mockserve.generation.tool_calls import ToolConstraint, forced_schema, tool_constraint_of
from mockserve.generation.writing import OutputSpec, chat_output_spec
from mockserve.metrics.counters import CHAT, RESPONSES
from mockserve.protocol.chat_messages import MEDIA_MARK, Medium, check_text_only, last_content, media_of
from mockserve.protocol.completions import ChatBodies, ChatRequest, has_plain_messages
from mockserve.protocol.sampling import (
    Delivery,
    SamplingParams,
    check_max_tokens,
    refuse_unavailable,
    refuse_unavailable_tools,
)
from mockserve.realtime.driver import unix_time
from mockserve.reply.call_style import PLAIN, CallStyle, Fillers, ReasoningStyle, call_style, filling
from mockserve.reply.chat_writer import ChatShape
from mockserve.reply.reply import Accounting, ParsingCounter, PlannedPrompt, ReplyJob
from mockserve.serving.model import Adapter, ServedModel
from mockserve.serving.planner import (
    Planner,
    check_truncation,
    check_unicode,
    draft_request,
    is_long_reply,
    scope_of,
    text_ids,
)
from mockserve.serving.prompts import (
    Beams,
    check_with_model,
    delivery_of,
    empty_prompt_last,
    extra_args_of,
    interval_of,
    new_scorers,
    num_top,
    prompt_scores,
    read_beams,
    returns_tokens_as_ids,
    with_extra_arguments,
)


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


def refuse_early(model: ServedModel, body: dict[str, Any]) -> None:
    """Raise ApiError for what vLLM refuses in a typed body before it looks at the parts of messages."""
    model.check_model(body.get("model") or "")
    refuse_unavailable_tools(body, model.answers.calls_tools)
    model.planner.conversations.refuse_untrusted(body)
    name = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    if type(body.get(name)) is int:
        check_max_tokens(SamplingParams(max_tokens=body[name], max_tokens_param=name), model.planner.max_model_len)
    if type(body.get("truncate_prompt_tokens")) is int:
        check_truncation(body["truncate_prompt_tokens"], model.planner.max_model_len)


class ChatSettings(NamedTuple):
    """Results of planning a checked request that do not depend on its messages."""

    sampling: SamplingParams
    beams: Beams | None
    rendering: tuple[ChatTemplate, TemplateRequest] | None
    """The template of the conversation, and what it gets beside the messages; None for one of the request's own."""
    adds_marks: bool
    shows_text: bool
    form: OutputSpec
    draft: EngineRequest
    """The request to the engine, without its id, prompt and answer."""
    delivery: Delivery
    shape: ChatShape
    accounting: Accounting
    stream_interval: int
    extra_args: Mapping[str, Any] | None


async def plan_chat(
    model: ServedModel,
    chat: ChatRequest,
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
    queue = model.queue
    if queue.limits_anything or queue.driver.failure is not None:
        queue.check(chat.sampling.n)
    planner, common, shape = model.planner, chat.common, chat.shape
    known = None if shape is None else shape.settings
    if isinstance(known, ChatSettings) and known.rendering is not None and not planner.composer.uses_prompt_text:
        settings, (template, request) = known, known.rendering
        text = template.render(Turns(chat.body["messages"], template.takes_parts), request)
        ids = text_ids(planner, text, settings.adds_marks, settings.sampling)
    else:
        settings, text, ids = _checked(model, chat, refuses_unavailable, request_type)
        if shape is not None and refuses_unavailable and request_type == CHAT and _is_repeatable(model, chat, settings):
            shape.settings = settings
    sampling, beams, params = settings.sampling, settings.beams, common.kv_transfer_params
    draft = settings.draft._replace(
        id=reply_id,
        adapter="" if adapter is None else adapter.name,
        priority=common.priority if priority is None else priority,
        external=None if model.transfer is None else model.external_prompt(params, len(ids)),
    )
    scope = scope_of(common.cache_salt, adapter)
    choices = await planner.plan(ids, sampling, draft, scope, settings.form, num_prompts=num_prompts)
    scores = None if sampling.num_prompt_logprobs is None else prompt_scores(model, sampling, ids, choices)
    prompt = PlannedPrompt(ids, text.replace(MEDIA_MARK, ""), choices, scores, shows_text=settings.shows_text)
    return ReplyJob(
        bodies=_chat_bodies(model, chat, reply_id, adapter, settings.delivery.include_usage),
        new_writer=settings.shape.writer,
        text_pieces=settings.shape.text_pieces,
        delivery=settings.delivery,
        prompts=[prompt],
        accounting=settings.accounting,
        templates=model.templates,
        stream_interval=settings.stream_interval,
        num_announced=None if beams is None else beams.num_announced,
        is_empty=beams is not None and beams.is_empty,
        kv_transfer_params=None if model.transfer is None else model.handover(params, choices),
        is_long=is_long_reply(sampling, [prompt], repeats_prompts=False),
        sampling=sampling,
        extra_args=settings.extra_args,
    )


def _checked(
    model: ServedModel, chat: ChatRequest, refuses_unavailable: bool, request_type: str
) -> tuple[ChatSettings, str, list[int]]:
    """Return the settings of a chat, its prompt and the prompt's ids. Raises ApiError, in vLLM's order."""
    body, planner, options = chat.body, model.planner, model.options
    if refuses_unavailable:
        refuse_unavailable(body, model.answers.calls_tools)
    check_max_tokens(chat.sampling, planner.max_model_len)
    media = media_in(model, chat.messages)
    sampling = planner.defaults.applied(chat.sampling, body)
    beams = read_beams(sampling, options.replies.max_logprobs) if sampling.use_beam_search else None
    sampling = sampling if beams is None else beams.sampling
    conversations = planner.conversations
    text = conversations.prompt(body)
    is_tokenized = conversations.makes_token_ids(body)
    per_medium, adds_marks = options.replies.tokens_per_medium, chat.add_special_tokens and not is_tokenized
    placed = placed_conversation(planner, text, media, per_medium, adds_marks) if media else None
    with empty_prompt_last(model, body, sampling, chat.common, searches_beams=beams is not None):
        ids, places = placed or (text_ids(planner, text, adds_marks, sampling), ())
    forced_calls_schema(model, body)
    form = chat_output_spec(body, text, model.answers, planner.composer.uses_prompt_text)
    check_with_model(model, body, sampling, chat.common, [len(ids)], searches_beams=beams is not None)
    parsing = _parsing_counter(model, chat, form, request_type)
    settings = ChatSettings(
        sampling=sampling,
        beams=beams,
        rendering=None if media or conversations.has_own_template(body) else conversations.prepared(body),
        adds_marks=adds_marks,
        shows_text=chat.response_options.prompt_text and not is_tokenized,
        form=form if beams is None else form._replace(constraint=None),
        draft=with_extra_arguments(draft_request(""), body)._replace(media=places),
        delivery=delivery_of(model, chat.delivery),
        shape=_chat_shape(model, chat, form)._replace(parsing=parsing),
        accounting=_accounting_of(model, media, searches_beams=beams is not None),
        stream_interval=interval_of(model, sampling, chat.response_options),
        extra_args=extra_args_of(body) or ({} if request_type == RESPONSES else None),
    )
    return settings, text, ids


def _is_repeatable(model: ServedModel, chat: ChatRequest, settings: ChatSettings) -> bool:
    """Whether the settings hold for all requests that differ in plain messages alone."""
    form, composer, common = settings.form, model.planner.composer, chat.common
    depends_on_prompt = form.constraint is not None or form.tools is not None or composer.uses_prompt_text
    depends_on_length = common.routed_experts_prompt_start or common.kv_transfer_params is not None
    return settings.beams is None and not depends_on_prompt and not depends_on_length and has_plain_messages(chat.body)


def media_in(model: ServedModel, messages: list[Any]) -> list[Medium]:
    """Return the images and recordings of a conversation. Raises ApiError if the model does not support media."""
    if model.options.replies.tokens_per_medium:
        return media_of(messages)
    check_text_only(messages, model.names[0])
    return []


def _chat_bodies(
    model: ServedModel, chat: ChatRequest, reply_id: str, adapter: Adapter | None, ends_with_usage: bool
) -> ChatBodies:
    role = _answer_role(model, chat)
    return ChatBodies(
        id=reply_id,
        created=unix_time(),
        model=model.reply_name(adapter),
        fingerprint=model.fingerprint,
        ends_with_usage=ends_with_usage,
        role=role,
        echoed=last_content(chat.messages, role) if chat.echoes else "",
        shows_prompt_ids=chat.response_options.token_ids,
        weight_version=model.weight_version
        if chat.response_options.weight_versions and not chat.sampling.use_beam_search
        else None,
    )


def _answer_role(model: ServedModel, chat: ChatRequest) -> str:
    """Return the role of the answer, which has the role of the message that it continues."""
    return model.options.replies.response_role if chat.role is None else chat.role


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


def _call_style_of(model: ServedModel, form: OutputSpec, chat: ChatRequest) -> CallStyle:
    """Return the style of the parser of calls for an answer; without one, the parser of reasoning determines the last
    event."""
    parser, body = model.options.content.tools.tool_call_parser, chat.body
    if form.tools is None:
        ends_alone = not model.answers.calls_tools and chat.includes_reasoning
        after_words = model.reasoning_style.after_words
        style = PLAIN._replace(fillers=Fillers(after_words=after_words)) if ends_alone else PLAIN
        is_read = model.answers.calls_tools and body.get("tool_choice", "none") is None
        return style._replace(begin_mark=call_style(parser).begin_mark) if is_read else style
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


def _chat_shape(model: ServedModel, chat: ChatRequest, form: OutputSpec) -> ChatShape:
    body = chat.body
    forces_tools = body.get("tools") and body.get("tool_choice") not in (None, "none", "auto")
    return ChatShape(
        role=_answer_role(model, chat),
        new_scorer=new_scorers(model, chat.sampling),
        num_top=num_top(chat.sampling, extra=0),
        tokens_as_ids=returns_tokens_as_ids(model, chat.response_options),
        tokens_have_bytes=not chat.sampling.use_beam_search,
        shows_token_ids=chat.response_options.token_ids,
        includes_reasoning=chat.includes_reasoning,
        empty_content="" if forces_tools else None,
        calls=_call_style_of(model, form, chat),
        reasoning=_reasoning_style(model, body),
        num_earlier_calls=sum(len(each.get("tool_calls") or ()) for each in body["messages"]),
    )


def _parsing_counter(
    model: ServedModel, chat: ChatRequest, form: OutputSpec, request_type: str
) -> ParsingCounter | None:
    metrics, reads_without_tools = model.tool_parsing, chat.body.get("tool_choice", "none") is None
    if metrics is None or (form.tools is None and not reads_without_tools):
        return None
    return ParsingCounter(
        metrics,
        request_type,
        after_reasoning=model.options.content.reasoning.reasoning_parser is not None,
        interval=max(1, interval_of(model, chat.sampling, chat.response_options)),
    )


def _accounting_of(model: ServedModel, media: list[Medium], searches_beams: bool) -> Accounting:
    options = model.options
    tokens_per_medium = options.replies.tokens_per_medium
    counts: dict[str, int] = {}
    for medium in media:
        counts[medium.modality] = counts.get(medium.modality, 0) + tokens_per_medium
    return Accounting(
        shows_prompt_details=options.replies.enable_prompt_tokens_details and not searches_beams,
        counts_reasoning=options.content.reasoning.reasoning_parser is not None,
        shows_metrics=options.replies.enable_per_request_metrics,
        block_size_tokens=model.block_size_tokens,
        media_tokens=counts,
    )
