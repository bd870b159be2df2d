"""vLLM's own engine core and scheduler on a workload, in virtual time, with a record of their actions.

Everything but the model step is vLLM's: its loop bodies, its scheduler, its KV cache. Only the processes and queues
around the core are left out, and its executor computes nothing.
"""

import json
import os
import queue
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from math import lcm
from pathlib import Path
from typing import Any

from vllm.config import (  # type: ignore[import-not-found]
    CacheConfig,
    KVEventsConfig,
    KVTransferConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange  # type: ignore[import-not-found]
from vllm.sampling_params import SamplingParams  # type: ignore[import-not-found]
from vllm.utils.hashing import sha256  # type: ignore[import-not-found]
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager  # type: ignore[import-not-found]
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # type: ignore[import-not-found]
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # type: ignore[import-not-found]
from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found]
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs  # type: ignore[import-not-found]
from vllm.v1.engine.core import EngineCore  # type: ignore[import-not-found]
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput  # type: ignore[import-not-found]
from vllm.v1.request import Request, RequestStatus  # type: ignore[import-not-found]
from vllm.v1.structured_output import StructuredOutputManager  # type: ignore[import-not-found]

from blis_sim.engine.config import Pipeline
from blis_sim.engine.speculation import DRAFTERS, AcceptanceSampler, Speculation
from workshop.vllm_oracle.content import Contents
from workshop.vllm_oracle.genuine_groups import attention_block_tokens, kv_cache_config
from workshop.vllm_oracle.genuine_tiers import Tiers
from workshop.vllm_oracle.genuine_transfers import VirtualTransfers, connector_worker
from workshop.vllm_oracle.workload import (
    AbortedRequest,
    Arrival,
    ProcessedOutputs,
    RunRecord,
    ScheduledStep,
    Workload,
)

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


class Drafts:
    """The number of accepted drafts of each request, by our own draws."""

    def __init__(self, speculation: Speculation | None, arrivals: Iterable[Arrival]) -> None:
        self.num_tokens = speculation.num_tokens if speculation else 0
        self._acceptance = AcceptanceSampler(speculation) if speculation else None
        self._numbers: dict[str, int] = {}
        for each in arrivals:
            self.enter(each)

    def enter(self, arrival: Arrival) -> None:
        """Number a request, in order of arrival."""
        if self._acceptance is not None and arrival.max_tokens != 1:  # one of a single token never drafts
            self._numbers[arrival.id] = self._acceptance.next_number(len(arrival.prompt))

    def num_accepted(self, num_output_tokens: int, scheduled: Any, name: str) -> int:
        """Return the number of accepted drafts; 0 for a newcomer, whose places are only filled."""
        drafts = scheduled.scheduled_spec_decode_tokens.get(name, ())
        newcomers = {
            new.req_id for new in scheduled.scheduled_new_reqs
        } | scheduled.scheduled_cached_reqs.resumed_req_ids
        if self._acceptance is None or name in newcomers or name not in self._numbers:
            return 0
        return self._acceptance.num_accepted(self._numbers[name], num_output_tokens, len(drafts))


@dataclass(slots=True)
class DelayedResult:
    """The result that the executor returns at once; waiting for it lets virtual time pass."""

    wait: Callable[[], Any]

    def result(self) -> Any:
        return self.wait()


class Oracle:
    """vLLM's configuration, built once; building it is what takes long."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(MODEL))
            model = ModelConfig(model=folder, dtype="bfloat16", skip_tokenizer_init=True, max_model_len=512)
        self._config = VllmConfig(
            scheduler_config=SchedulerConfig(max_model_len=512, is_encoder_decoder=False),
            model_config=model,
            cache_config=CacheConfig(block_size=16),
            parallel_config=ParallelConfig(),
        )
        self._speculative = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=1,
            target_model_config=model,
            target_parallel_config=self._config.parallel_config,
        )
        register_all_kvcache_specs(self._config)
        self._structured_output = StructuredOutputManager(self._config)
        init_none_hash(sha256)

    def story(self, workload: Workload) -> RunRecord:
        """Return vLLM's record, from the first arrival until it is idle."""
        ranks = workload.ranks
        self._config.parallel_config.data_parallel_size = ranks.number if ranks and ranks.share_experts else 1
        if ranks is None:
            return VirtualRun(self._scheduler(workload), self._config, workload).story()
        from workshop.vllm_oracle.genuine_ranks import RankRuns  # which imports this module

        return RankRuns([self._scheduler(workload) for _ in range(ranks.number)], self._config, workload).story()

    def _scheduler(self, workload: Workload) -> Any:
        ours, config = workload.config, self._config
        if ours.num_stages > 1:
            # On GPUs vLLM takes its newer model runner but for some drafts; the older one has no asynchronous
            # scheduling with several stages.
            is_newer = ours.async_scheduling or ours.speculation is None or _suits_newer_runner(ours.speculation)
            os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(is_newer))
        config.model_config.max_model_len = ours.max_model_len
        scheduling = config.scheduler_config
        scheduling.max_num_seqs = ours.max_num_seqs + 2
        scheduling.max_num_active_seqs = ours.max_num_seqs
        scheduling.max_num_scheduled_tokens = ours.max_num_scheduled_tokens or None
        scheduling.long_prefill_token_threshold_adaptive = ours.long_prefill_token_threshold_adaptive
        scheduling.max_num_batched_tokens = ours.max_num_batched_tokens
        scheduling.long_prefill_token_threshold = ours.long_prefill_token_threshold
        scheduling.policy = "priority" if workload.by_priority else "fcfs"
        scheduling.async_scheduling = ours.async_scheduling
        scheduling.enable_chunked_prefill = ours.enable_chunked_prefill
        scheduling.scheduler_reserve_full_isl = ours.reserve_full_prompt
        scheduling.watermark = ours.watermark_fraction
        scheduling.prefill_schedule_interval = ours.prefill_schedule_interval
        config.parallel_config.pipeline_parallel_size = ours.num_stages
        config.lora_config = None if ours.lora is None else LoRAConfig(max_loras=ours.lora.max_loras)
        config.speculative_config = self._speculative_config(ours.speculation)
        config.cache_config.block_size = attention_block_tokens(ours)
        config.cache_config.mamba_cache_mode = "align" if ours.enable_prefix_caching else "none"
        config.cache_config.enable_prefix_caching = ours.enable_prefix_caching
        config.cache_config.num_gpu_blocks = ours.total_kv_blocks
        sizes = [group.block_tokens for group in ours.kv_groups] or [ours.block_size_tokens]
        scheduled, hashed = lcm(*sizes), ours.block_size_tokens
        publishes = ours.reports_kv_changes
        config.kv_events_config = KVEventsConfig(enable_kv_cache_events=publishes, publisher="null")
        config.kv_transfer_config = None
        if ours.offload is not None:
            config.kv_transfer_config = KVTransferConfig(
                kv_connector="OffloadingConnector",
                kv_role="kv_both",
                kv_connector_extra_config={"cpu_bytes_to_use": 1 << 40},
            )
        scheduling.disable_chunked_mm_input = ours.encoder is not None and not ours.encoder.splits_media
        scheduler = (AsyncScheduler if ours.async_scheduling else Scheduler)(
            vllm_config=config,
            kv_cache_config=kv_cache_config(ours),
            block_size=scheduled,
            hash_block_size=hashed if ours.enable_prefix_caching else scheduled,
            log_stats=True,
            structured_output_manager=self._structured_output,
            include_finished_set=workload.ranks is not None,
        )
        if ours.offload is not None:
            scheduler.connector.scheduler.manager._num_chunks = ours.offload.num_blocks
        if ours.encoder is not None:  # a model with media would settle both by its processor
            scheduler.max_num_encoder_input_tokens = ours.encoder.step_tokens
            scheduler.encoder_cache_manager = EncoderCacheManager(ours.encoder.cache_tokens)
        return scheduler

    def _speculative_config(self, ours: Speculation | None) -> Any:
        """Return a configuration of a method without weights, changed to look like `ours`: the scheduler reads nothing
        else."""
        if ours is None:
            return None
        theirs = self._speculative
        theirs.method = ours.method
        theirs.num_speculative_tokens = ours.num_tokens
        theirs.parallel_drafting = ours.parallel_drafting
        theirs.disable_lookahead_block_hashes = not ours.hashes_next_token
        theirs.disable_eagle_block_drop = ours.keeps_last_hit_block
        return theirs


@dataclass(slots=True)
class VirtualTime:
    """An instant that runs go on from."""

    now: int = 0


class VirtualRun:
    """One engine core, its executor and its busy loop, in virtual time."""

    def __init__(self, scheduler: Any, config: Any, workload: Workload, time: VirtualTime | None = None) -> None:
        self._workload = workload
        self._scheduler = scheduler
        self._schedule = scheduler.schedule
        self._update_from_output = scheduler.update_from_output
        scheduler.schedule = self.schedule
        scheduler.update_from_output = self.update_from_output
        self._contents = Contents()
        scheduler.kv_event_publisher.publish = self._contents.published
        self._core = self._engine_core(scheduler, config)
        caches = workload.config.enable_prefix_caching or workload.config.offload is not None
        ahead, block_size = config.num_hash_lookahead_tokens, workload.config.block_size_tokens
        self._hasher = get_request_block_hasher(block_size, sha256, ahead) if caches else None
        self._time = time or VirtualTime()
        self._busy_until = 0
        stages = workload.config.pipeline
        self._pipeline = None if stages is None else Pipeline(stages)
        self._transfers: VirtualTransfers | None = None
        self._tiers: Tiers | None = None
        if workload.config.offload is not None:
            if workload.config.offload.devices:
                self._tiers = Tiers(self, workload.config.offload, workload.config.reports_kv_changes)
                scheduler.connector.connector_scheduler.manager = self._tiers.manager
            self._transfers = VirtualTransfers(self, workload.config.offload.block_us)
            self._worker = connector_worker(config, scheduler.kv_cache_config, self._transfers)
            self._ended: list[str] = []
            self._connector_finished = scheduler._connector_finished
            self._build_meta = scheduler.connector.build_connector_meta
            scheduler._connector_finished = self.connector_finished
            scheduler.connector.build_connector_meta = self.build_connector_meta
        self._executing: tuple[Any, list[str]] | None = None
        self._samples: list[str] = []
        self._drafts = Drafts(workload.config.speculation, workload.arrivals)
        self._story = RunRecord()
        self._num_sampled: dict[str, int] = {}
        self._by_id = {arrival.id: arrival for arrival in workload.arrivals}
        self._arrivals = deque(workload.arrivals)
        deadlines = [(a.deadline_us, a.id) for a in workload.arrivals if a.deadline_us]
        # vLLM takes in those of one step as a set, whose order is arbitrary, so here it is ours.
        self._aborts = deque(sorted(workload.hang_ups + deadlines, key=lambda abort: abort[0]))

    def story(self) -> RunRecord:
        """vLLM's busy loop: take in what has come, step, and sleep only when there is nothing to do."""
        core = self._core
        idle: tuple[int, int, int] | None = None
        num_idle = 0
        while not self._story.is_endless:
            self._take_in()
            num_changes = sum(each.num_changes for each in (self._transfers, self._tiers) if each is not None)
            now_idle = (self._time.now, len(self._story.lines), num_changes)
            num_idle = num_idle + 1 if now_idle == idle else 0
            idle = now_idle
            if num_idle > 8:
                if not self._pass_idle_time():
                    break  # vLLM would wait for ever
                continue
            if self._scheduler.has_requests() or core.batch_queue:
                _, executed = core.step() if core.batch_queue is None else core.step_with_batch_queue()
                core.post_step(executed)
            elif self._arrivals or self._aborts:
                self._time.now = min(events[0][0] for events in (self._arrival_instants(), self._aborts) if events)
            else:
                break
        self._story.content = self._contents.changes
        return self._story

    def _pass_idle_time(self) -> bool:
        """Let time pass until something else happens, where vLLM's core composes nothing. False without anything."""
        soonest = [events[0][0] for events in (self._arrival_instants(), self._aborts) if events]
        ends = (
            self._transfers.next_end(self._time.now) if self._transfers else None,
            self._tiers.next_end() if self._tiers else None,
        )
        soonest += [at for at in ends if at is not None]
        if not soonest:
            return False
        self._time.now = min(soonest)
        return True

    @property
    def now(self) -> int:
        return self._time.now

    @property
    def computes_until(self) -> int:
        """Instant at which all steps are computed that have been handed to the GPU."""
        return max(self._busy_until, self._time.now)

    def connector_finished(self, request: Any) -> Any:
        """The scheduler's, with a note of the order in which requests end, for vLLM keeps a set."""
        self._ended.append(request.request_id)
        return self._connector_finished(request)

    def build_connector_meta(self, scheduled: Any) -> Any:
        """The connector's, with ended requests in their order."""
        scheduled.finished_req_ids = [name for name in self._ended if name in scheduled.finished_req_ids]
        self._ended.clear()
        meta = self._build_meta(scheduled)
        scheduled.finished_req_ids = set(scheduled.finished_req_ids)
        return meta

    def _begin_transfers(self, scheduled: Any) -> None:
        """The worker's part before a step: stores of the step before are handed over."""
        if self._transfers is not None:
            self._worker.handle_preemptions(scheduled.kv_connector_metadata)

    def _connector_output(self, scheduled: Any) -> Any:
        """The worker's part after a step has been handed to the GPU."""
        if self._transfers is None:
            return None
        self._worker.start_kv_transfers(scheduled.kv_connector_metadata)
        self._worker.prepare_store_kv(scheduled.kv_connector_metadata)
        _, received = self._worker.get_finished(set())
        return KVConnectorOutput(
            finished_recving=received or None, kv_connector_worker_meta=self._worker.build_connector_worker_meta()
        )

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """The scheduler's, with a line written when it did anything."""
        stats = self._scheduler.kv_cache_manager.prefix_cache_stats
        queries, hits = stats.queries, stats.hits
        brought = self._scheduler.connector_prefix_cache_stats
        external = 0 if brought is None else brought.hits + brought.preempted_hits
        if self._pipeline is not None:
            self._pipeline.composed()
        num_failures = 0 if self._tiers is None else self._tiers.num_failures
        output = self._schedule(throttle_prefills)
        tokens = output.num_scheduled_tokens
        if self._tiers is not None and not tokens and not self._has_steps_in_flight():
            self._tiers.num_failures = num_failures  # an idle core composes, and fails, as often as time allows
        self._samples = [name for name in tokens if not self._scheduler.requests[name].is_prefill_chunk]
        if brought is not None:
            external = brought.hits + brought.preempted_hits - external
        if not tokens and not output.preempted_req_ids and not external:
            return output
        blocks = self._blocks_of(output)
        self._story.lines.append(
            ScheduledStep(
                self._time.now,
                tuple(tokens.items()),
                tuple((name, blocks[name]) for name in tokens),
                tuple(sorted(output.preempted_req_ids)),
                *self._queues(),
                self._num_free(),
                stats.queries - queries,
                stats.hits - hits,
                external,
                self._num_offloaded(),
                () if self._tiers is None else self._tiers.num_behind,
            )
        )
        return output

    def _has_steps_in_flight(self) -> bool:
        return any(batch[1].num_scheduled_tokens for batch in self._core.batch_queue or ())

    def _num_offloaded(self) -> int:
        """Blocks in CPU memory, those on their way included."""
        if self._transfers is None:
            return 0
        manager = self._scheduler.connector.scheduler.manager
        return len((manager.primary_tier if self._tiers else manager)._policy.chunks)

    def _blocks_of(self, output: Any) -> dict[str, tuple[int, ...]]:
        """New blocks of each request in a step; with groups all blocks, group after group."""
        if self._workload.config.kv_groups:
            manager = self._scheduler.kv_cache_manager
            return {name: tuple(chain(*manager.get_block_ids(name))) for name in output.num_scheduled_tokens}
        cached = output.scheduled_cached_reqs
        blocks = {new.req_id: tuple(new.block_ids[0]) for new in output.scheduled_new_reqs}
        new_blocks = zip(cached.req_ids, cached.new_block_ids, strict=True)
        return blocks | {name: tuple(ids[0]) if ids else () for name, ids in new_blocks}

    def update_from_output(self, scheduled: Any, sampled: Any) -> Any:
        """The scheduler's, with a line written when a step ended."""
        outputs = self._update_from_output(scheduled, sampled)
        if scheduled.num_scheduled_tokens:
            reported = [
                (
                    output.request_id,
                    len(output.new_token_ids),
                    None if output.finish_reason is None else str(output.finish_reason),
                )
                for of_client in outputs.values()
                for output in of_client.outputs
            ]
            self._story.lines.append(
                ProcessedOutputs(self._time.now, tuple(reported), self._queues()[0], self._num_free(), _drafts(outputs))
            )
        return outputs

    def execute_model(self, scheduled: Any, non_block: bool = False) -> DelayedResult:
        """The executor's first half, which the core calls with each composition."""
        self._begin_transfers(scheduled)
        if not scheduled.num_scheduled_tokens:
            self._executing = None
            brought = self._connector_output(scheduled)
            return DelayedResult(lambda: ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=brought))
        self._executing = (scheduled, self._samples)
        return DelayedResult(lambda: None)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """The executor's second half: one step after the other, each as long as the latency model predicts."""
        assert self._executing is not None
        scheduled, samples = self._executing
        tokens = scheduled.num_scheduled_tokens
        end = self._begin_step(sum(tokens.values()), len(tokens), bool(samples))
        brought = self._connector_output(scheduled)

        def wait() -> Any:
            self._await_step(end)
            names = list(tokens)
            return ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=[self._next_tokens(name, scheduled) if name in samples else [] for name in names],
                kv_connector_output=brought,
            )

        return DelayedResult(wait) if non_block else wait()

    def _begin_step(self, num_tokens: int, num_requests: int, samples: bool) -> int:
        """Hand a step to the GPU. Returns what `_await_step` takes: its end."""
        step_us = self._workload.latency.time_of(num_tokens, num_requests)
        if self._pipeline is None:
            self._busy_until = max(self._busy_until, self._time.now) + step_us
        else:
            started_at = self._pipeline.start(self._time.now)
            _, self._busy_until = self._pipeline.enter(started_at, step_us, num_tokens, samples)
        return self._busy_until

    def _await_step(self, end: int) -> None:
        """Let time pass until a step has ended."""
        self._time.now = max(self._time.now, end)
        self._hang_up_before(self._time.now)

    def take_draft_token_ids(self) -> Any:
        """The drafts that follow the latest step, when steps are not composed ahead of them.

        Workers answer one call after the other, so the core waits until the step has left the last stage.
        """
        assert self._executing is not None
        scheduled, _ = self._executing
        self._await_drafts()
        names = list(scheduled.num_scheduled_tokens)
        num_drafts = 0 if scheduled.skip_drafts else self._drafts.num_tokens
        return DraftTokenIds(names, [[0] * num_drafts for _ in names])

    def _await_drafts(self) -> None:
        """Let time pass until the drafts are there that follow the latest step."""
        self._time.now = max(self._time.now, self._busy_until)
        # A hang-up before its request arrives changes nothing.
        waiting = {arrival.id: arrival.at for arrival in self._arrivals}
        self._aborts = deque(
            (at, name) for at, name in self._aborts if at > self._time.now or waiting.get(name, 0) < at
        )

    def _new_core(self) -> Any:
        """An engine core without anything."""
        return object.__new__(EngineCore)

    def _engine_core(self, scheduler: Any, config: Any) -> Any:
        """An engine core without the start-up of one."""
        core = self._new_core()
        core.scheduler = scheduler
        core.model_executor = self
        core.vllm_config = config
        core.log_stats = True
        core.batch_queue_size = config.max_concurrent_batches
        core.batch_queue = deque(maxlen=core.batch_queue_size) if core.batch_queue_size > 1 else None
        core.is_mm_encoder_only = False
        core.is_pooling_model = False
        core.check_for_draft_tokens = config.speculative_config is not None
        core.async_scheduling = config.scheduler_config.async_scheduling
        core.aborts_queue = queue.Queue()
        core.abort_requests = self._abort
        core._weight_version = ""
        return core

    def _arrival_instants(self) -> list[tuple[int, str]]:
        return [(self._arrivals[0].at, self._arrivals[0].id)] if self._arrivals else []

    def _take_in(self) -> None:
        while self._arrivals and self._arrivals[0].at <= self._time.now:
            self._scheduler.add_request(self._request(self._arrivals.popleft()))
        while self._aborts and self._aborts[0][0] <= self._time.now:
            self._abort([self._aborts.popleft()[1]])

    def _hang_up_before(self, until: int) -> None:
        """A hang-up while a step executes is noticed when it ends, before its outputs are processed.

        Requests that came in the meantime are not there yet, and leave when they are taken in.
        """
        early: list[tuple[int, str]] = []
        while self._aborts and self._aborts[0][0] <= until:
            at, name = self._aborts.popleft()
            if name in self._scheduler.requests:
                self._core.aborts_queue.put([name])
            elif self._by_id[name] in self._arrivals and self._by_id[name].at < at:
                early.append((at, name))
        self._aborts.extendleft(reversed(early))

    def _abort(self, names: list[str]) -> None:
        # One after the other: vLLM takes them as a set, whose order is arbitrary.
        for name in names:
            for request in self._scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED):
                self._story.aborted.append(AbortedRequest(self._time.now, request.request_id))

    def _next_tokens(self, name: str, scheduled: Any) -> list[int]:
        """Return the tokens that the model samples for a request in a step: the drafts that hold, and one token."""
        arrival, index = self._by_id[name], self._num_sampled.get(name, 0)
        end = index + 1 + self._drafts.num_accepted(index, scheduled, name)
        self._num_sampled[name] = end
        return [arrival.output_token(each) for each in range(index, end)]

    def _request(self, arrival: Arrival) -> Any:
        sampling = SamplingParams(
            max_tokens=arrival.budget,
            ignore_eos=True,
            stop_token_ids=[arrival.stop_token],
            prompt_logprobs=None if arrival.reads_prefix_cache else 1,
            extra_args={"kv_cache_report_mode": "full"} if arrival.reports_found_blocks else None,
        )
        return Request(
            request_id=arrival.id,
            prompt_token_ids=list(arrival.prompt),
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=arrival.at / 1e6,
            priority=arrival.priority,
            lora_request=_adapter(arrival.adapter),
            cache_salt=arrival.salt or None,
            block_hasher=self._hasher,
            mm_features=[
                MultiModalFeatureSpec(
                    data=None,
                    modality="image",
                    identifier=str(medium.identity),
                    mm_position=PlaceholderRange(offset=medium.offset, length=medium.num_tokens),
                )
                for medium in arrival.media
            ],
        )

    def _queues(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        running = self._scheduler.running
        waiting = chain(self._scheduler.kv_holding_waiting, self._scheduler.waiting)
        return tuple(r.request_id for r in running), tuple(r.request_id for r in waiting)

    def _num_free(self) -> int:
        return int(self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def _adapter(name: str) -> Any:
    """Return vLLM's description of an adapter, whose name ends with its number; None without any."""
    return LoRARequest(name, int(name.removeprefix("adapter")), "nowhere") if name else None


def _suits_newer_runner(speculation: Speculation) -> bool:
    is_parallel = speculation.parallel_drafting and not DRAFTERS[speculation.method].has_own_pass
    return speculation.method != "suffix" and not is_parallel


def _drafts(outputs: Any) -> tuple[int, ...]:
    """Return the counts of drafts in a step's statistics."""
    for of_client in outputs.values():
        stats = of_client.scheduler_stats and of_client.scheduler_stats.spec_decoding_stats
        if stats:
            counts = (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens)
            return (*counts, *stats.num_accepted_tokens_per_pos)
    return ()
