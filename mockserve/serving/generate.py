"""Planning of replies to prompts of token ids, which are token ids."""

from dataclasses import dataclass, replace
from typing import Any

from mockserve.generation.writing import OutputSpec, chat_output_spec, completion_output_spec
from mockserve.protocol.bodies import Choice, Ending, Piece, chat_logprobs
from mockserve.protocol.errors import ApiError
from mockserve.protocol.generate import GenerateBodies, GenerationRequest, check_prompt_length, token_logprobs
from mockserve.protocol.sampling import check_vocabulary, refuse_thinking_budget
from mockserve.realtime.driver import unix_time
from mockserve.reply.call_style import CallStyle, call_style
from mockserve.reply.chat_writer import ChatShape, ChatWriter
from mockserve.reply.choice_writer import NewScorer, scored_tokens
from mockserve.reply.frames import OTHER_ERRORS
from mockserve.reply.reply import (
    Accounting,
    ChoiceWriter,
    LazyChoices,
    PlannedChoice,
    PlannedChoices,
    PlannedPrompt,
    ReplyJob,
)
from mockserve.serving.model import Adapter, ServedModel
from mockserve.serving.planner import draft_request, is_long_reply, scope_of
from mockserve.serving.prompts import new_scorers, num_top, prompt_scores


async def plan_generate(
    model: ServedModel, request: GenerationRequest, reply_id: str, adapter: Adapter | None, priority: int | None
) -> ReplyJob:
    """Plan the reply. Raises ApiError for refusals that depend on the model. `priority` overrides that of the body."""
    model.queue.check(1)
    _check_server(model, request)
    planner, sampling = model.planner, request.sampling
    limit = planner.max_model_len
    check_prompt_length(len(request.token_ids), limit)
    planner.check_ids(request.token_ids)
    has_ceiling = sampling.max_tokens is None
    if sampling.max_tokens is not None:
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, limit))
    planner.budget(sampling, len(request.token_ids), has_ceiling)
    check_vocabulary(sampling, request.logit_bias, planner.vocabulary_size, model.options.replies.max_logprobs)
    refuse_thinking_budget(request.thinking_token_budget, model.options.content.reasoning.reasoning_parser is not None)
    model.queue.check_each([len(request.token_ids)], sampling.n)
    urgency = request.common.priority if priority is None else priority
    params = request.common.kv_transfer_params
    external = model.external_prompt(params, len(request.token_ids))
    draft = draft_request(reply_id, adapter, urgency)._replace(external=external)
    scope, form = scope_of(request.common.cache_salt, adapter), _output_form(model, request)
    choices = await planner.plan(request.token_ids, sampling, draft, scope, form, has_ceiling)
    if request.output_mode != "derender":
        choices = _all_without_call_parsing(choices)
    prompt = PlannedPrompt(
        token_ids=request.token_ids,
        text="",
        choices=choices,
        scores=prompt_scores(model, sampling, request.token_ids, choices),
    )
    shape = GenerateShape(
        output_mode=request.output_mode,
        new_scorer=new_scorers(model, sampling),
        num_top=num_top(sampling, extra=1),
        shows_prompt_ids=request.returns_prompt_ids,
        includes_reasoning=request.includes_reasoning,
        calls=call_style(model.options.content.tools.tool_call_parser),
    )
    return ReplyJob(
        bodies=GenerateBodies(
            id=reply_id,
            created=unix_time(),
            model=model.reply_name(adapter),
            output_mode=request.output_mode,
            shows_prompt_ids=request.returns_prompt_ids,
            weight_version=model.weight_version,
        ),
        new_writer=shape.writer,
        delivery=request.delivery,
        prompts=[prompt],
        accounting=Accounting(
            shows_prompt_details=model.options.replies.enable_prompt_tokens_details,
        ),
        stream_interval=max(model.options.replies.stream_interval, request.stream_interval),
        kv_transfer_params=model.handover(params, choices),
        errors=OTHER_ERRORS,
        gets_comments=False,
        is_long=is_long_reply(sampling, [prompt], repeats_prompts=request.returns_prompt_ids),
        sampling=sampling,
    )


def _output_form(model: ServedModel, request: GenerationRequest) -> OutputSpec:
    """Return the form of the answer: an answer to a rendered chat has reasoning and calls like any other."""
    context = request.parse_context
    demanded = {"structured_outputs": request.structured_outputs}
    if context is None:
        return completion_output_spec(demanded, None, model.answers)
    return chat_output_spec({**context, **demanded, "messages": []}, "", model.answers, uses_prompt_text=False)


def _all_without_call_parsing(choices: PlannedChoices) -> PlannedChoices:
    if isinstance(choices, LazyChoices):
        return choices.changed(_without_call_parsing)
    return [_without_call_parsing(each) for each in choices]


def _without_call_parsing(choice: PlannedChoice) -> PlannedChoice:
    """Return the ending that a server without a parser of calls reports: `stop`."""
    answer = choice.answer
    if answer.ending.finish_reason != "tool_calls":
        return choice
    return replace(choice, answer=answer._replace(ending=Ending("stop", answer.ending.stop_reason)))


def _check_server(model: ServedModel, request: GenerationRequest) -> None:
    """Raise ApiError for requests that require flags which the server was started without."""
    most = model.deployment.config.max_num_seqs
    if request.sampling.n > most:
        raise ApiError(
            f"sampling_params.n must be at most the server's max_num_seqs ({most}), got {request.sampling.n}."
        )
    if request.output_mode == "derender" and request.parse_context is None and model.answers.parses_answers:
        raise ApiError(
            "output_mode='derender' requires parse_context on a server with a tool or reasoning parser. "
            "Use the one returned by /render."
        )
    if not model.options.routes.tokens_only:
        return
    if request.sampling.stop:
        raise ApiError(
            "stop strings are not supported on a --tokens-only server because detokenization is disabled. "
            "Check stop strings on the coordinator, or use stop_token_ids."
        )
    if request.output_mode != "tokens":
        raise ApiError(
            f"output_mode={request.output_mode!r} requires a tokenizer, but this server does not load one "
            "(--tokens-only or --skip-tokenizer-init). Send the request to a server that loads a tokenizer, or use "
            "output_mode='tokens'."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateShape:
    """The requested form of choices: ids alone, ids with their text, or a parsed message."""

    output_mode: str
    new_scorer: NewScorer | None
    num_top: int | None
    shows_prompt_ids: bool
    includes_reasoning: bool
    calls: CallStyle

    def writer(self, prompt: PlannedPrompt, choice: PlannedChoice) -> ChoiceWriter:
        """The writer of one choice."""
        if self.output_mode == "derender":
            chat = ChatShape(
                new_scorer=self.new_scorer,
                num_top=None if self.num_top is None else self.num_top - 1,
                shows_token_ids=True,
                includes_reasoning=self.includes_reasoning,
                calls=self.calls,
            )
            return MessageWriter(chat, prompt, choice)
        return TokenWriter(self, prompt, choice)


class TokenWriter(ChoiceWriter):
    """Writes one choice as token ids."""

    def __init__(self, shape: GenerateShape, prompt: PlannedPrompt, choice: PlannedChoice) -> None:
        self._shape = shape
        self._prompt = prompt
        self._choice = choice
        self._answer = choice.answer
        self._scorer = None if shape.new_scorer is None else shape.new_scorer(choice)

    def last_piece(self, first: int, last: int) -> Piece:
        has_prompt_ids = first == 0 and self._shape.shows_prompt_ids
        return Piece(
            delta=self._content(first, last),
            token_ids=self._answer.token_ids[first:last],
            prompt_token_ids=self._prompt.token_ids if has_prompt_ids else None,
            logprobs=self._logprobs(first, last),
        )

    def choice(self, num_tokens: int, ending: Ending) -> Choice:
        return Choice(
            content=self._content(0, num_tokens),
            ending=ending,
            num_tokens=num_tokens,
            token_ids=self._answer.token_ids[:num_tokens],
            logprobs=self._logprobs(0, num_tokens),
            prompt_output=self._prompt.prompt_output,
        )

    def _content(self, first: int, last: int) -> dict[str, Any]:
        return {"text": "".join(self._answer.texts[first:last])} if self._shape.output_mode == "text" else {}

    def _logprobs(self, first: int, last: int) -> dict[str, Any] | None:
        if self._scorer is None:
            return None
        tokens = scored_tokens(self._scorer, self._choice, first, last)
        if self._shape.output_mode == "text":
            return chat_logprobs(tokens, self._shape.num_top, as_ids=False)
        return token_logprobs(tokens)


class MessageWriter(ChatWriter):
    """Writes one choice as an assistant's message, parsed from the generated text."""

    def choice(self, num_tokens: int, ending: Ending) -> Choice:
        found = super().choice(num_tokens, ending)
        return found._replace(content={"message": found.content})
