"""The engine behind a frontend: its requests, and the outputs of its steps."""

import asyncio
import logging
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from blis_sim.engine.events import BatchDone
from blis_sim.engine.request import Medium
from blis_sim.wings.engine_core import messages
from blis_sim.wings.engine_core.messages import (
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    Event,
    EventKind,
    Finish,
    Frames,
    Logprobs,
    PoolingParams,
    PrefillStats,
    PromptLogprobs,
    RequestError,
)
from blis_sim.wings.engine_core.pooling import Pooling
from blis_sim.wings.engine_core.statistics import RankStatistics
from mockserve.engines import driver_of
from mockserve.generation.answer import Answer
from mockserve.generation.writing import completion_output_spec
from mockserve.protocol.bodies import Ending, ScoredToken
from mockserve.protocol.errors import ApiError
from mockserve.protocol.generate import GenerationRequest, parse_generate
from mockserve.protocol.sampling import SamplingParams, check_vocabulary
from mockserve.realtime.driver import EngineFailedError, ignore
from mockserve.reply.choice_writer import Scorer
from mockserve.reply.reply import PlannedChoice
from mockserve.serving.model import Adapter, ServedModel
from mockserve.serving.planner import draft_request, scope_of
from mockserve.serving.prompts import new_scorers, prompt_scores
from mockserve.serving.service import Service

_logger = logging.getLogger(__name__)

_Scores: TypeAlias = "list[np.typing.NDArray[Any]]"

INVALID, PAUSED = "validation_error", "engine_paused"
PAUSED_MESSAGE = "Generation is paused. Please retry after it resumes."


LONGEST_LOGGED = 300


def printable(text: str) -> str:
    """Return a text of a peer as it may stand in one line of the log."""
    return "".join(each if each.isprintable() else "?" for each in text[:LONGEST_LOGGED])


class _Collected:
    """The part of a step that one API server is sent: outputs, their arrays, and ids of requests that ended."""

    def __init__(self) -> None:
        self.outputs: list[EngineOutput] = []
        self.frames = Frames()
        self.ended: set[str] = set()


class StepOutputs:
    """Collects the outputs of a rank, and sends those of one step to each API server in one message."""

    def __init__(self, service: Service, statistics: RankStatistics, send: Callable[[int, list[bytes]], None]) -> None:
        """`send` takes the index of an API server, and the frames of a message for it."""
        self._wire = service.delivery.wire
        self._logs_stats = not service.options.observability.disable_log_stats
        self._statistics = statistics
        self._send = send
        self._collected: defaultdict[int, _Collected] = defaultdict(_Collected)
        self._has_stats = False
        self._ended_s = 0.0
        """When the step ended that is in collection, on the monotonic clock; 0 without one."""
        self._is_registered = False
        self.due_s = 0.0
        """When the step ended, on the monotonic clock."""
        self.weight_version: str | None = "default"
        self.names_finished = False
        """Whether messages name the requests that ended, which a frontend with several ranks needs."""

    def frames(self, client: int) -> Frames:
        """Return the frames of the message to an API server."""
        return self._collected[client].frames

    def put(self, client: int, output: EngineOutput) -> None:
        """Collect the output of a request."""
        self._send_soon()
        self._collected[client].outputs.append(output)
        if self.names_finished and output.finish_reason is not None:
            self._collected[client].ended.add(output.request_id)

    def step_ended(self, event: BatchDone) -> None:
        """Note the batch of a step before its tokens come. Its statistics are sent even if there are no tokens."""
        self.leave()
        self._send_soon()
        self._ended_s = self._statistics.seconds_at(event.at)
        if self._logs_stats:
            self._statistics.step_ended(event)
            self._has_stats = True

    def name_finished(self, client: int, request_id: str) -> None:
        """Name a request that ended without an output in the next message to its API server."""
        if self.names_finished:
            self._send_soon()
            self._collected[client].ended.add(request_id)

    def _send_soon(self) -> None:
        """See to it that what is collected is sent when the delivery of tokens ends, or at once outside of one."""
        wire = self._wire
        self.due_s = wire.due_s if wire.is_held else time.monotonic()
        if self._is_registered:
            return
        self._is_registered = True
        if wire.is_held:
            wire.departing.append(self)
        else:
            asyncio.get_running_loop().call_soon(self.leave)

    def leave(self) -> int:
        """Send what was collected. Returns the number of outputs."""
        collected, self._collected = self._collected, defaultdict(_Collected)
        stats = self._statistics.of_step() if self._has_stats else None
        ended_s, self._ended_s = self._ended_s, 0.0
        self._has_stats = False
        if not self._wire.is_held:
            self._is_registered = False
        if stats is not None and not collected:
            collected[0] = _Collected()
        for client, each in collected.items():
            message = EngineOutputs(
                self._statistics.rank,
                each.outputs,
                stats,
                ended_s or time.monotonic(),
                finished_requests=each.ended or None,
                weight_version=self.weight_version,
            )
            stats = None
            self._send(client, each.frames.encoded(message))
        return sum(len(each.outputs) for each in collected.values())


class CoreRequest(PlannedChoice):
    """A request of a frontend, which gets an output for each step with new tokens of it."""

    def __init__(
        self,
        core: "RankCore",
        request: EngineRequest,
        choice: PlannedChoice,
        sampling: SamplingParams,
        scorer: Scorer | None,
        prompt_scores: "_Scores | None",
        pooled: "np.typing.NDArray[np.float32] | None" = None,
    ) -> None:
        super().__init__(choice.request, answer=choice.answer, seed=choice.seed)
        self._core, self._outputs = core, core.outputs
        self._id, self.client = request.request_id, request.client_index
        self._trace_headers = request.trace_headers
        self._sampling = sampling
        self._scorer, self._prompt_scores = scorer, prompt_scores
        self.pooled = pooled
        """The result of a request that is pooled; it has no tokens."""
        self._num_shown_preemptions = 0
        self.kv_transfer_params: dict[str, object] | None = None

    @property
    def is_streamed(self) -> bool:
        return self.pooled is None

    def token(self, number: int) -> None:
        self._put(number, None)

    def tokens(self, first: int, last: int) -> None:
        self._put(last, None)

    def fail(self, message: str, status: int) -> None:
        self._core.ended(self._id)
        error = None if status == HTTPStatus.INTERNAL_SERVER_ERROR else RequestError(INVALID, message)
        self._outputs.put(self.client, EngineOutput(self._id, [], finish_reason=Finish.ERROR, error=error))

    def finish(self, num_tokens: int) -> None:
        self._end(num_tokens, self.ending_at(num_tokens))

    def abort(self, num_tokens: int) -> None:
        self._end(num_tokens, Ending("abort"))

    def _end(self, num_tokens: int, ending: Ending) -> None:
        self._core.ended(self._id)
        self._put(num_tokens, ending)

    def _put(self, number: int, ending: Ending | None) -> None:
        first, self.num_sent = self.num_sent, number
        token_ids = list(self.answer.token_ids[first:number])
        output = EngineOutput(self._id, token_ids, trace_headers=self._trace_headers)
        if self._scorer is not None and token_ids:
            output.new_logprobs = self._scores(self._scorer, first, token_ids)
        if first == 0 and number:
            self._describe_prefill(output)
        else:
            output.events = self._preemptions() or None
        if ending is not None:
            if self.pooled is not None:
                output.pooling_output = self._outputs.frames(self.client).add(self.pooled, is_tensor=True)
            output.finish_reason = Finish.__members__.get(ending.finish_reason.upper(), Finish.STOP)
            output.stop_reason = ending.stop_reason
            output.kv_transfer_params = self.kv_transfer_params
        self._outputs.put(self.client, output)

    def _describe_prefill(self, output: EngineOutput) -> None:
        """Add to the first output what the frontend learns of the prompt."""
        if self._prompt_scores is not None:
            add = partial(self._outputs.frames(self.client).add, is_tensor=True)
            ids, logprobs, ranks = map(add, self._prompt_scores)
            output.new_prompt_logprobs_tensors = PromptLogprobs(ids, logprobs, ranks)
            self._prompt_scores = None
        self._core.statistics.num_looked_up += 1
        seconds_at = self._core.seconds_at
        taken_at = self._core.statistics.taken_at(self.queued_at)
        output.events = [Event(EventKind.QUEUED, seconds_at(taken_at))]
        if self.first_scheduled_at is not None:
            output.events.append(Event(EventKind.SCHEDULED, seconds_at(self.first_scheduled_at)))
        output.events += self._preemptions()
        num_prompt, num_cached = self.request.input_tokens, self.num_cached_tokens
        block = self._core.block_size_tokens
        output.prefill_stats = PrefillStats(
            num_prompt_tokens=num_prompt,
            num_computed_tokens=num_prompt - num_cached,
            num_cached_tokens=num_cached,
            num_local_cached_tokens=num_cached - self.num_external_tokens,
            num_external_cached_tokens=self.num_external_tokens,
            num_cache_creation_tokens=max(0, num_prompt // block * block - num_cached)
            if self._core.caches_prefixes
            else 0,
        )

    def _preemptions(self) -> list[Event]:
        number = self.num_preemptions - self._num_shown_preemptions
        if not number:
            return []
        self._num_shown_preemptions = self.num_preemptions
        now_s = time.monotonic()
        return [Event(kind, now_s) for _ in range(number) for kind in (EventKind.PREEMPTED, EventKind.SCHEDULED)]

    def _scores(self, scorer: Scorer, first: int, token_ids: Sequence[int]) -> Logprobs:
        rows = [scorer.score(first + place, each) for place, each in enumerate(token_ids)]
        num_top = len(self._sampling.logprob_token_ids) or max(0, self._sampling.num_logprobs or 0)
        ids, logprobs, ranks = map(self._outputs.frames(self.client).add, _score_arrays(rows, num_top))
        return Logprobs(ids, logprobs, ranks)


def _score_arrays(scored: Iterable[ScoredToken | None], num_top: int) -> _Scores:
    """Return ids and log-probabilities, each row with the token first, then its `num_top` likeliest; and ranks."""
    ids, logprobs, ranks = array("i"), array("f"), array("i")
    for row in scored:
        if row is None:
            continue
        likeliest = row.shown[1:] if len(row.shown) > num_top else sorted(row.shown, key=lambda each: each.rank)
        shown = [row.chosen, *likeliest][: num_top + 1]
        shown += [row.chosen] * (num_top + 1 - len(shown))
        ids.extend([each.token_id for each in shown])
        logprobs.extend([each.logprob for each in shown])
        ranks.append(row.chosen.rank)
    shape = (len(ranks), num_top + 1)
    scores = np.array(ids, np.int32).reshape(shape), np.array(logprobs, np.float32).reshape(shape)
    return [*scores, np.array(ranks, np.int32)]


class RankCore:
    """One data-parallel rank: the requests that a frontend has sent to it."""

    def __init__(
        self,
        service: Service,
        number: int,
        rank: int,
        send: Callable[[int, list[bytes]], None],
        shows_batches: bool = False,
    ) -> None:
        """`number` counts the ranks of this process from 0, `rank` those of the deployment."""
        engine = service.engines[number]
        self.service = service
        self.rank = rank
        self._place, self._number = number, number if len(service.engines) > 1 else None
        self._driver = driver_of(service.engines)
        self.seconds_at = self._driver.seconds_at
        self.statistics = RankStatistics(engine, rank, self.seconds_at, shows_batches)
        self.outputs = StepOutputs(service, self.statistics, send)
        self._driver.outputs[number].on_batch = self.outputs.step_ended
        engine.driver.engine.report_batches()
        self.block_size_tokens = service.model.block_size_tokens
        self.caches_prefixes = engine.driver.engine.config.enable_prefix_caching
        self._open: dict[str, CoreRequest] = {}
        self._planning: dict[str, asyncio.Task[None]] = {}
        self.adapters: dict[int, Adapter] = {}
        self._pooling = Pooling(service.model.pooler)

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._open) + len(self._planning)

    def add(self, request: EngineRequest) -> None:
        """Take a request: plan its tokens, then submit it to the engine."""
        if request.request_id in self._open or request.request_id in self._planning:
            _logger.warning("a request with the id of an open one was ignored: %s", printable(request.request_id))
            return
        if request.abort_immediately:
            self._refuse(request, Finish.ABORT)
            return
        task = asyncio.ensure_future(self._taken(request, self._driver.clock()))
        self._planning[request.request_id] = task

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests whose clients have gone. They get no more outputs."""
        for each in request_ids:
            task = self._planning.pop(each, None)
            if task is not None:
                task.cancel()
            found = self._open.pop(each, None)
            if found is not None:
                self._driver.abort(found.request.id)
                self.outputs.name_finished(found.client, each)

    def abort_all(self) -> None:
        """End all requests without outputs, take no more batches, and unload adapters: the frontend has gone."""
        names, self.outputs.names_finished = self.outputs.names_finished, False
        self.abort([*self._planning, *self._open])
        self.outputs.names_finished = names
        self._driver.outputs[self._place].on_batch = ignore
        for adapter in self.adapters.values():
            if adapter.name in self.service.model.adapters:
                self.service.model.adapters.unload(adapter.name)

    def ended(self, request_id: str) -> None:
        """Forget a request that has its last output."""
        self._open.pop(request_id, None)

    async def _taken(self, request: EngineRequest, at: int) -> None:
        driver = self._driver
        try:
            with driver.pending_arrival(at):
                choice = await self._planned(request)
                if self.service.delivery.suspension.rejects_new:
                    self._refuse(request, Finish.ERROR, RequestError(PAUSED, PAUSED_MESSAGE, retryable=True))
                    return
                # Numbered before it is submitted: with time that jumps its first token may come at once.
                self._open[request.request_id] = choice
                driver.submit(choice, at, self._number)
        except ApiError as error:
            _logger.info("request %s is refused: %s", printable(request.request_id), printable(error.message))
            self._refuse(request, Finish.ERROR, RequestError(INVALID, error.message))
        except EngineFailedError:
            self._refuse(request, Finish.ERROR)
        except Exception:
            _logger.exception("request %s could not be planned", printable(request.request_id))
            self._refuse(request, Finish.ERROR)
        finally:
            self._planning.pop(request.request_id, None)

    def _refuse(self, request: EngineRequest, finish: Finish, error: RequestError | None = None) -> None:
        output = EngineOutput(request.request_id, [], finish_reason=finish, error=error)
        self.outputs.put(request.client_index, output)

    async def _planned(self, request: EngineRequest) -> CoreRequest:
        """Plan the tokens of a request. Raises ApiError for one that the engine refuses."""
        model, delivery = self.service.model, self.service.delivery
        params = request.sampling_params
        ids, media = _prompt(request, model)
        if params is None:
            return await self._pooled(request, ids, request.pooling_params or PoolingParams())
        model.planner.check_length(len(ids))
        fields, planner = _fields(params), model.planner
        body = {"token_ids": ids, "sampling_params": fields, "priority": request.priority}

        def parsed_body() -> GenerationRequest:
            parsed = parse_generate(body)
            planner.check_ids(ids)
            check_vocabulary(parsed.sampling, parsed.logit_bias, planner.vocabulary_size, -1)
            return parsed

        is_long = (
            sum(len(each) for each in (ids, *fields.values()) if isinstance(each, list | dict)) > LONG_PROMPT_TOKENS
        )
        parsed = await delivery.executor.run(True, parsed_body) if is_long else parsed_body()
        sampling = parsed.sampling
        extra = params.get("extra_args")
        transfer_params = extra.get("kv_transfer_params") if isinstance(extra, dict) else None
        transfer_params = transfer_params if isinstance(transfer_params, dict) else None
        adapter = None if request.lora_request is None else self.adapter(request.lora_request)
        external = model.external_prompt(transfer_params, len(ids))
        draft = draft_request(request.request_id, adapter, request.priority)._replace(external=external, media=media)
        scope = scope_of(request.cache_salt, adapter)
        form = completion_output_spec({"structured_outputs": parsed.structured_outputs}, None, model.answers)
        choices = await planner.plan(ids, sampling, draft, scope, form, has_ceiling=False)
        new_scorer = new_scorers(model, sampling)
        scored = prompt_scores(model, sampling, ids, choices)
        num_top = max(0, sampling.num_prompt_logprobs or 0)
        scores = None if scored is None else await delivery.executor.run(True, _score_arrays, scored, num_top)
        choice = CoreRequest(
            self,
            request,
            choices[0],
            sampling,
            None if new_scorer is None else new_scorer(choices[0]),
            scores,
        )
        choice.kv_transfer_params = model.handover(transfer_params, choices)
        return choice

    async def _pooled(self, request: EngineRequest, ids: list[int], params: PoolingParams) -> CoreRequest:
        """Plan a request that ends with its prompt. Raises ApiError for one that the engine refuses."""
        planner = self.service.model.planner
        planner.check_ids(ids)
        lora = None if request.lora_request is None else self.adapter(request.lora_request)
        draft, scope = draft_request(request.request_id, lora, request.priority), scope_of(request.cache_salt, lora)

        def computed() -> tuple[PlannedChoice, "np.typing.NDArray[np.float32]"]:
            prefill = planner.prefill_request(ids, draft, scope)
            return PlannedChoice(prefill, answer=Answer([], Ending("stop"), [], [])), self._pooling.of(params, ids)

        is_long = len(ids) > LONG_POOLED_TOKENS
        choice, pooled = await self.service.delivery.executor.run(False, computed) if is_long else computed()
        return CoreRequest(self, request, choice, SamplingParams(), None, None, pooled)

    def adapter(self, wanted: messages.LoraRequest) -> Adapter:
        """Return an adapter of the frontend's number, loaded if it is not. Raises ApiError without --enable-lora."""
        known = self.adapters.get(wanted.lora_int_id)
        if known is not None and not wanted.load_inplace:
            return known
        loaded = self.service.model.adapters.load(
            wanted.lora_name, wanted.lora_path or wanted.lora_name, replaces=True, is_3d=wanted.is_3d_lora_weight
        )
        self.adapters[wanted.lora_int_id] = loaded
        return loaded


LONG_POOLED_TOKENS = 2000
"""Prompts with more tokens are pooled on a thread."""
LONG_PROMPT_TOKENS = 20_000
"""Requests with more tokens, in their prompt or in fields, are read on a thread."""
MOST_MEDIA_OF_A_TOKEN = 2
"""Media that a token of a prompt may belong to: a video and its sound share some."""
MOST_MEDIA = 3000
"""Media of one prompt: a frontend allows 999 of each kind by default."""
_OWN_FIELDS = frozenset({"output_kind", "skip_clone", "output_text_buffer_length", "stop", "flat_logprobs"})
"""Fields of sampling that the frontend itself obeys: it looks for stop strings, and ends the request at one."""


def _fields(params: Mapping[str, Any]) -> dict[str, object]:
    """Return sampling parameters as the fields of the HTTP route that takes token ids."""
    given = {"max_tokens": messages.DEFAULT_MAX_TOKENS, **params}
    found = _public({name: value for name, value in given.items() if name not in _OWN_FIELDS})
    if isinstance(constraint := found.get("structured_outputs"), dict):
        found["structured_outputs"] = _public(constraint)
    return found


def _public(fields: Mapping[str, Any]) -> dict[str, object]:
    """Return the fields that have a value, without those that the frontend has derived."""
    return {name: value for name, value in fields.items() if value is not None and not name.startswith("_")}


def _prompt(request: EngineRequest, model: ServedModel) -> tuple[list[int], tuple[Medium, ...]]:
    """Return the ids of a prompt with those of its media, and the media.

    Placeholders are alike for all media of a kind, so each medium gets ids of its own: blocks of equal media are equal.
    """
    ids = request.prompt_token_ids
    if ids is None:
        embeds = request.prompt_embeds
        length = embeds[1][0] if isinstance(embeds, list) and len(embeds) == 3 and embeds[1] else 0
        if not isinstance(length, int) or not 0 < length <= model.planner.max_model_len:
            raise ApiError("a prompt needs token ids, or embeddings within the context")
        first = crc32(bytes(embeds[2]) if isinstance(embeds[2], memoryview) else request.request_id.encode())
        ids = [(first + number) % model.planner.vocabulary_size for number in range(length)]
    media: list[Medium] = []
    if len(request.mm_features or ()) > MOST_MEDIA:
        raise ApiError(f"a prompt has {len(request.mm_features or ())} media, more than {MOST_MEDIA}")
    if request.mm_features:
        ids, vocabulary_size = list(ids), model.planner.tokenizer.vocabulary_size
        num_left = MOST_MEDIA_OF_A_TOKEN * min(len(ids), model.planner.max_model_len)
        for each in request.mm_features:
            start, end = each.mm_position.offset, each.mm_position.offset + each.mm_position.length
            if not 0 <= start < end <= len(ids):
                raise ApiError(f"a medium has tokens {start} to {end} of {len(ids)}")
            num_left -= end - start
            if num_left < 0:
                raise ApiError(f"media have more than {MOST_MEDIA_OF_A_TOKEN} times the tokens of their prompt")
            media.append(Medium(start, end - start, (each.modality, each.identifier)))
            first = crc32(each.identifier.encode())
            ids[start:end] = [number % vocabulary_size for number in range(first, first + end - start)]
    if not ids:
        raise ApiError("The decoder prompt cannot be empty")
    return ids, tuple(sorted(media))
