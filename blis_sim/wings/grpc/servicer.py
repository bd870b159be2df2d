"""vLLM's gRPC service: its messages to and from our requests and replies, and the service itself."""

import asyncio
import hashlib
import io
import math
import zipfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from blis_sim.engine.core import Engine
from blis_sim.engine.units import Micros
from blis_sim.options.files import read_text
from blis_sim.options.option import load_model_json
from mockserve.http.headers import Caller
from mockserve.kv_events.naming import GLOBAL_SCOPE
from mockserve.protocol.bodies import Ending, ScoredToken
from mockserve.protocol.errors import ApiError, paused
from mockserve.protocol.generate import GenerationRequest, parse_generate
from mockserve.reply.choice_writer import NewScorer, Scorer
from mockserve.reply.reply import PlannedChoice, Reply, ReplyDelivery, ReplyJob
from mockserve.serving.generate import plan_generate
from mockserve.serving.planner import draft_request
from mockserve.serving.prefill import prefill
from mockserve.serving.prompts import new_scorers
from mockserve.serving.service import VLLM_VERSION, Service

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "tiktoken.model", "chat_template.json"),
)
TOKENIZER_PATTERNS = ("*.tiktoken", "*.jinja", "*.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """A model's type, and a zip archive of its tokenizer files; empty without a model folder."""

    model_type: str = ""
    architectures: tuple[str, ...] = ()
    archive: bytes = b""

    @property
    def sha256(self) -> str:
        """The fingerprint of the archive."""
        return hashlib.sha256(self.archive).hexdigest()


def read_metadata(folder: str) -> ModelMetadata:
    """Return the metadata of a model folder; empty for a model of the catalogue. Cost: a second per 20 MB."""
    path = Path(folder)
    if not path.is_dir():
        return ModelMetadata()
    config = _config(path / "config.json")
    architectures = config.get("architectures")
    return ModelMetadata(
        model_type=str(config.get("model_type", "")),
        architectures=tuple(map(str, architectures)) if isinstance(architectures, list) else (),
        archive=_archive(path),
    )


def _config(file: Path) -> dict[str, Any]:
    try:
        found = load_model_json(read_text(file))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _archive(folder: Path) -> bytes:
    names = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    for pattern in TOKENIZER_PATTERNS:
        names += sorted(each.name for each in folder.glob(pattern) if each.is_file() and each.name not in names)
    if not names:
        return b""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            # A fixed time makes the archive of equal files equal.
            archive.writestr(zipfile.ZipInfo(name), (folder / name).read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def body_of(request: Any, token_ids: Sequence[int]) -> dict[str, Any]:
    """Return a `GenerateRequest` as the body of the HTTP route that takes token ids, with vLLM's defaults.

    Raises ApiError for media, which a text model does not accept.
    """
    if request.HasField("media_refs") or request.HasField("mm_inputs") or request.extra_mm_inputs:
        raise ApiError("multimodal inputs sent to a model that takes text only")
    params = request.sampling_params
    sampling: dict[str, Any] = {
        "n": params.n or 1,
        "temperature": params.temperature if params.HasField("temperature") else 1.0,
        "top_p": params.top_p or 1.0,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "repetition_penalty": params.repetition_penalty or 1.0,
        "min_tokens": params.min_tokens,
        "stop": list(params.stop) or None,
        "stop_token_ids": list(params.stop_token_ids) or None,
        "skip_special_tokens": params.skip_special_tokens,
        "ignore_eos": params.ignore_eos,
        "include_stop_str_in_output": params.include_stop_str_in_output,
        "logit_bias": {str(key): value for key, value in params.logit_bias.items()} or None,
        "structured_outputs": _constraint(params),
    }
    for name in ("max_tokens", "logprobs", "prompt_logprobs", "seed"):
        if params.HasField(name):
            sampling[name] = getattr(params, name)
    # vLLM truncates only text prompts, after tokenization.
    return {"token_ids": token_ids, "sampling_params": sampling, "stream": request.stream}


def _constraint(params: Any) -> dict[str, Any] | None:
    """Return the output constraint in the format of `structured_outputs`."""
    kind = params.WhichOneof("constraint")
    if kind is None:
        return None
    if kind == "choice":
        return {"choice": list(params.choice.choices)}
    return {"json" if kind == "json_schema" else kind: getattr(params, kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceTokens:
    """New tokens of choice `index`, with scores if requested, and `num_top` candidates per token."""

    index: int
    token_ids: Sequence[int]
    scores: Sequence[ScoredToken]
    prompt_ids: Sequence[int]
    prompt_scores: Iterable[ScoredToken | None]
    num_cached_tokens: int
    num_top: int
    num_prompt_top: int


def chunk_of(tokens: ChoiceTokens) -> Any:
    """Return a stream response with new tokens; the first response of a choice has the prompt's scores."""
    return pb.GenerateResponse(chunk=pb.GenerateStreamChunk(token_ids=tokens.token_ids, **_common_fields(tokens)))


def complete_of(tokens: ChoiceTokens, ending: Ending) -> Any:
    """Return the last response of a choice, with the tokens of the last chunk in a stream, else with all tokens."""
    complete = pb.GenerateComplete(
        output_ids=tokens.token_ids,
        finish_reason=ending.finish_reason,
        **_common_fields(tokens),
        **_matched(ending.stop_reason),
    )
    return pb.GenerateResponse(complete=complete)


def _common_fields(tokens: ChoiceTokens) -> dict[str, Any]:
    """Return the fields common to both kinds of responses."""
    return {
        "prompt_tokens": len(tokens.prompt_ids),
        "completion_tokens": len(tokens.token_ids),
        "cached_tokens": tokens.num_cached_tokens,
        "output_logprobs": _output_logprobs(tokens.scores, tokens.num_top),
        "input_logprobs": _input_logprobs(tokens.prompt_scores, tokens.prompt_ids, tokens.num_prompt_top),
        "index": tokens.index,
    }


def _matched(stop_reason: int | str | None) -> Mapping[str, Any]:
    if stop_reason is None:
        return {}
    return {"matched_token_id" if isinstance(stop_reason, int) else "matched_stop_str": stop_reason}


def _output_logprobs(scores: Sequence[ScoredToken], num_top: int) -> Any:
    if not scores:
        return None
    return pb.OutputLogProbs(
        token_logprobs=[each.chosen.logprob for each in scores],
        token_ids=[each.chosen.token_id for each in scores],
        top_logprobs=[_top(each, num_top) for each in scores] if num_top else [],
    )


def _input_logprobs(scores: Iterable[ScoredToken | None], prompt_ids: Sequence[int], num_top: int) -> Any:
    found = list(scores)
    if not found:
        return None
    return pb.InputLogProbs(
        token_logprobs=[pb.InputTokenLogProb(value=None if each is None else each.chosen.logprob) for each in found],
        token_ids=prompt_ids,
        top_logprobs=[pb.TopLogProbs() if each is None else _top(each, num_top) for each in found] if num_top else [],
    )


def _top(scored: ScoredToken, num_top: int) -> Any:
    shown = scored.shown[:num_top]
    return pb.TopLogProbs(values=[each.logprob for each in shown], token_ids=[each.token_id for each in shown])


CODES = {
    HTTPStatus.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    HTTPStatus.INTERNAL_SERVER_ERROR: grpc.StatusCode.INTERNAL,
    HTTPStatus.NOT_IMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
}
"""gRPC codes by HTTP status; any other status is INVALID_ARGUMENT."""
MOST_FLUSH_S = 60.0
_IDS_PER_TURN = 1000
"""Ids of requests to abort that are looked up before the event loop gets control back."""
PIECE_BYTES = 65_536
"""Bytes of an archive in one message."""
EMPTY_PROMPT = "The decoder prompt cannot be empty"
NO_EVENTS = "KV cache events are not sent over gRPC here; subscribe to the endpoint of --kv-events-config"


def code_of(error: ApiError) -> grpc.StatusCode:
    """Return the gRPC code of a refusal."""
    return CODES.get(HTTPStatus(error.status), grpc.StatusCode.INVALID_ARGUMENT)


class RpcReply(Reply):
    """A reply whose responses go to a queue: in a stream one chunk per step, and a complete response at the end."""

    is_streamed = True

    def __init__(
        self,
        delivery: ReplyDelivery,
        job: ReplyJob,
        arrived_at: Micros,
        caller: Caller,
        api_request: GenerationRequest,
        new_scorer: NewScorer | None,
    ) -> None:
        super().__init__(delivery, job, arrived_at, caller)
        self._api_request, self._new_scorer = api_request, new_scorer
        self._scorers: dict[int, Scorer] = {}
        self.queue: asyncio.Queue[Any] = asyncio.Queue()

    def token(self, choice: PlannedChoice, number: int) -> None:
        if self._api_request.delivery.stream:
            self.queue.put_nowait(self._chunk(choice, number))

    def end_choice(self, choice: PlannedChoice, num_tokens: int, ending: Ending) -> None:
        first = choice.num_sent
        if self._api_request.delivery.stream:
            self.queue.put_nowait(self._chunk(choice, num_tokens))
        self.queue.put_nowait(complete_of(self._tokens(choice, first, num_tokens, shows_prompt=True), ending))
        super().end_choice(choice, num_tokens, ending)

    def _chunk(self, choice: PlannedChoice, number: int) -> Any:
        first, choice.num_sent = choice.num_sent, number
        return chunk_of(self._tokens(choice, first, number, shows_prompt=first == 0))

    def _tokens(self, choice: PlannedChoice, first: int, last: int, shows_prompt: bool) -> ChoiceTokens:
        ids, prompt = choice.answer.token_ids, self.job.prompts[choice.prompt_number]
        scorer = self._scorers.get(choice.index)
        if scorer is None and self._new_scorer is not None:
            scorer = self._scorers[choice.index] = self._new_scorer(choice)
        prompt_scores = prompt.scores if shows_prompt and prompt.scores is not None else ()
        return ChoiceTokens(
            index=choice.index,
            token_ids=ids[first:last],
            scores=[] if scorer is None else [scorer.score(place, ids[place]) for place in range(first, last)],
            prompt_ids=prompt.token_ids,
            prompt_scores=prompt_scores,
            num_cached_tokens=choice.num_cached_tokens,
            num_top=max(0, self._api_request.sampling.num_logprobs or 0),
            num_prompt_top=max(0, self._api_request.sampling.num_prompt_logprobs or 0),
        )


class VllmEngine(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """vLLM's service `vllm.grpc.engine.VllmEngine`, without media and without the stream of KV events."""

    def __init__(self, service: Service, metadata: ModelMetadata) -> None:
        self._service = service
        self._facts = metadata
        self._open: dict[str, Reply] = {}

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Continue a prompt of token ids or text."""
        arrived_at = self._service.delivery.driver.clock()
        try:
            api_request, job = await self._planned(request)
            if self._service.delivery.suspension.rejects_new:
                raise paused()
        except ApiError as error:
            _refuse(context, code_of(error), error.message)
            return
        caller, new_scorer = _caller(request, context), new_scorers(self._service.model, api_request.sampling)
        reply = RpcReply(self._service.delivery, job, arrived_at, caller, api_request, new_scorer)
        self._open[request.request_id] = reply
        try:
            async for response in self._responses(reply):
                yield response
        except ApiError as error:
            _refuse(context, code_of(error), error.message)
        finally:
            self._open.pop(request.request_id, None)

    async def Embed(self, request: Any, context: Any) -> Any:
        """Embed a prompt of token ids."""
        service = self._service
        prompt: list[int] = []
        try:
            if not request.HasField("tokenized"):
                raise ApiError("EmbedRequest requires tokenized input")
            if service.model.pooler is None:
                raise ApiError("This model does not support pooling")
            prompt = _ids(request, service.model.planner.max_model_len)
            service.model.planner.check_ids(prompt)
            arrived_at, draft = service.delivery.driver.clock(), draft_request(request.request_id)
            await prefill(
                service.delivery, service.model.planner, [prompt], len(prompt), draft, GLOBAL_SCOPE, arrived_at
            )
        except ApiError as error:
            return _refuse(context, code_of(error), error.message)
        assert service.model.pooler is not None
        vector = [float(each) for each in service.model.pooler.embedding(prompt)]
        return pb.EmbedResponse(embedding=vector, prompt_tokens=len(prompt), embedding_dim=len(vector))

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        """Report whether the engine is healthy."""
        is_healthy = self._service.delivery.driver.failure is None
        return pb.HealthCheckResponse(healthy=is_healthy, message="Health" if is_healthy else "Engine is not alive")

    async def FlushCache(self, request: Any, context: Any) -> Any:
        """Wait until the engine has no request, then clear the prefix cache."""
        driver = self._service.delivery.driver
        if not 0 <= request.timeout_s < math.inf:
            return _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "timeout_s must be finite and non-negative")
        with suppress(TimeoutError):
            async with asyncio.timeout(min(MOST_FLUSH_S, request.timeout_s)):
                await driver.until(_is_idle)
        if driver.num_unfinished_requests:
            message = "KV prefix cache reset refused; requests may be in flight"
            return common_pb2.FlushCacheResponse(success=False, message=message)
        self._service.delivery.suspension.reset_prefix_cache(False)
        return common_pb2.FlushCacheResponse(success=True, message="Local KV prefix cache flushed successfully")

    async def Abort(self, request: Any, context: Any) -> Any:
        """Abort requests; replies keep the tokens generated so far."""
        for number, request_id in enumerate(request.request_ids):
            if number % _IDS_PER_TURN == 0:
                await asyncio.sleep(0)
            reply = self._open.get(request_id)
            if reply is not None:
                self._service.delivery.driver.end_early(list(reply.flights))
        return pb.AbortResponse()

    async def GetModelInfo(self, request: Any, context: Any) -> Any:
        """Describe the model."""
        model = self._service.model
        limit = model.planner.max_model_len
        eos = model.planner.tokenizer.eos_token_id
        return pb.GetModelInfoResponse(
            model_path=model.root,
            is_generation=model.pooler is None,
            max_context_length=limit,
            vocab_size=model.planner.vocabulary_size,
            served_model_name=model.names[0],
            tokenizer_path=model.options.content.tokenizer or model.root,
            eos_token_ids=[] if eos is None else [eos],
            max_req_input_len=limit,
            model_type=self._facts.model_type,
            architectures=self._facts.architectures,
        )

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        """Describe the server."""
        parser = self._service.options.content.reasoning.reasoning_parser or ""
        config = self._service.delivery.driver.engine.config
        return pb.GetServerInfoResponse(
            data_parallel_size=self._service.options.deployment.dp,
            block_size=config.block_size_tokens,
            max_num_seqs=config.max_num_seqs,
            kv_cache_dtype=self._service.options.deployment.kv_cache_dtype or "auto",
            engine_reasoning_parser=parser,
            constrained_decoding_start="after_reasoning" if parser else "first_token",
        )

    async def GetLoads(self, request: Any, context: Any) -> Any:
        """Report running and waiting requests, and KV cache in use, of each data-parallel rank."""
        loads = []
        first, waiting_tokens = min(self._service.engines), self._service.delivery.driver.num_waiting_tokens
        for rank, engine in sorted(self._service.engines.items()):
            stats, config = engine.driver.engine.stats, engine.driver.engine.config
            capacity = config.total_kv_blocks * config.block_size_tokens
            queries = engine.metrics.prefix_cache_queries
            loads.append(
                pb.SchedulerLoad(
                    dp_rank=rank,
                    num_running_reqs=stats.num_running,
                    num_waiting_reqs=stats.num_waiting,
                    num_total_reqs=stats.num_running + stats.num_waiting,
                    num_used_tokens=round(stats.kv_usage_fraction * capacity),
                    max_total_num_tokens=capacity,
                    token_usage=stats.kv_usage_fraction,
                    utilization=stats.kv_usage_fraction,
                    cache_hit_rate=engine.metrics.prefix_cache_hits / queries if queries else 0.0,
                    max_running_requests=config.max_num_seqs,
                    num_waiting_uncached_tokens=waiting_tokens if rank == first else 0,
                )
            )
        now = datetime.now(UTC).isoformat()
        return pb.GetLoadsResponse(timestamp=now, version=VLLM_VERSION, dp_rank_count=len(loads), loads=loads)

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Send the tokenizer's files as a zip archive, in pieces."""
        archive = self._facts.archive
        if not archive:
            _refuse(context, grpc.StatusCode.NOT_FOUND, "No tokenizer files found: the model is not a local folder")
        for start in range(0, len(archive), PIECE_BYTES):
            is_last = start + PIECE_BYTES >= len(archive)
            piece = archive[start : start + PIECE_BYTES]
            yield common_pb2.GetTokenizerChunk(data=piece, sha256=self._facts.sha256 if is_last else "")

    async def SubscribeKvEvents(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Refuse: KV events are published over ZeroMQ only."""
        _refuse(context, grpc.StatusCode.UNIMPLEMENTED, NO_EVENTS)
        events: tuple[Any, ...] = ()
        for event in events:
            yield event

    async def StartProfile(self, request: Any, context: Any) -> Any:
        """Succeed: there is no kernel to profile."""
        return common_pb2.ProfileResponse(success=True, message="Start profiling succeeded")

    async def StopProfile(self, request: Any, context: Any) -> Any:
        """Succeed: there is no kernel to profile."""
        return common_pb2.ProfileResponse(success=True, message="Stop profiling succeeded")

    async def _planned(self, request: Any) -> tuple[GenerationRequest, ReplyJob]:
        """Plan the reply to a request. Raises ApiError for requests that vLLM refuses."""
        model, delivery = self._service.model, self._service.delivery
        kind = request.WhichOneof("input")
        if kind == "text":
            ids: Sequence[int] = await delivery.executor.run(True, model.planner.encode, request.text, True)
            _check_length(len(ids), model.planner.max_model_len)
        else:
            ids = _ids(request, model.planner.max_model_len)
        api_request = await delivery.executor.run(True, lambda: parse_generate(body_of(request, ids)))
        name = request.request_id or next(self._service.ids)
        return api_request, await plan_generate(model, api_request, name, None, None)

    async def _responses(self, reply: RpcReply) -> AsyncIterator[Any]:
        """Yield responses as tokens come. Closing the generator aborts unfinished requests. Raises ApiError."""
        queue = reply.queue
        with self._service.delivery.open_replies:
            submitted = asyncio.ensure_future(reply.run())
            submitted.add_done_callback(lambda _: queue.put_nowait(None))
            try:
                while (response := await queue.get()) is not None:
                    yield response
                await submitted
            finally:
                submitted.cancel()


def _refuse(context: Any, code: grpc.StatusCode, details: str) -> None:
    """Let a call end with this status, and without a response.

    `context.abort` would raise an error that refers to the call and its message, a cycle that stays in memory.
    """
    context.set_code(code)
    context.set_details(details)


def _caller(request: Any, context: Any) -> Caller:
    """The data-parallel rank and the trace context of a call."""
    headers = {str(key): value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    return Caller(
        rank=request.data_parallel_rank if request.HasField("data_parallel_rank") else None,
        traceparent=headers.get("traceparent", ""),
        tracestate=headers.get("tracestate", ""),
    )


def _is_idle(engine: Engine) -> bool:
    return not engine.stats.num_running and not engine.stats.num_waiting


def _ids(request: Any, limit: int) -> list[int]:
    """Return the token ids of a request. Raises ApiError for a prompt of invalid length, which makes no list of it."""
    _check_length(len(request.tokenized.input_ids), limit)
    return list(request.tokenized.input_ids)


def _check_length(num_tokens: int, limit: int) -> None:
    """Raise ApiError with the engine's message for a prompt of invalid length."""
    if not num_tokens:
        raise ApiError(EMPTY_PROMPT)
    if num_tokens > limit:
        raise ApiError(
            f"The decoder prompt (length {num_tokens}) is longer than the maximum model length of {limit}. Make sure "
            "that `max_model_len` is no smaller than the number of text tokens."
        )
