"""The messages between vLLM's frontend and its engine, as release 0.33 declares them: msgspec structs, and their codec.

Facts: vllm/v1/engine/__init__.py, vllm/v1/engine/utils.py, vllm/v1/metrics/stats.py, vllm/v1/outputs.py,
vllm/sampling_params.py, vllm/pooling_params.py, vllm/lora/request.py, vllm/multimodal/inputs.py and
vllm/v1/serial_utils.py of that release.
An array of numbers is its type, its shape, and either its bytes or the number of the frame that has them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import msgpack

VLLM_VERSION = "0.33.0"
RAW_BYTES = 3
"""Code of the extension that has the bytes of an array."""
INLINE_BYTES = 256
"""Arrays of fewer bytes are part of the message; others are a frame of their own."""
ENGINE_DEAD = b"ENGINE_CORE_DEAD"
"""The whole message about the engine's end."""
COORDINATOR = -1
"""The index of the coordinator of data-parallel ranks among the receivers of outputs."""

DEFAULT_MAX_TOKENS = 16
"""Limit of an output whose sampling parameters have none."""
ADD, ABORT, START_WAVE, UTILITY = b"\x00", b"\x01", b"\x02", b"\x03"
"""First frames of a message to the engine."""

T = TypeVar("T")
Array: TypeAlias = Sequence[Any]
"""An array of numbers on the wire: type, shape, bytes or number of a frame."""


class Finish(IntEnum):
    """Why a request ended."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4


class EventKind(IntEnum):
    """Kinds of events of a request."""

    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


# The handshake.


class Greeting(msgspec.Struct):
    """A message of an engine to the frontend's handshake port: HELLO first, READY when it can work."""

    status: str
    local: bool = False
    headless: bool = True
    parallel_config_hash: str | msgspec.UnsetType = msgspec.UNSET


class Addresses(msgspec.Struct, forbid_unknown_fields=True):
    """Where an engine connects to: a pair of addresses for each API server, and those of the coordinator."""

    inputs: list[str]
    outputs: list[str]
    coordinator_input: str | None = None
    coordinator_output: str | None = None
    frontend_stats_publish_address: str | None = None

    def __post_init__(self) -> None:
        if not self.inputs or len(self.inputs) != len(self.outputs):
            raise ValueError(f"{len(self.inputs)} input and {len(self.outputs)} output addresses")


class Welcome(msgspec.Struct, forbid_unknown_fields=True):
    """The frontend's answer to HELLO."""

    addresses: Addresses
    parallel_config: dict[str, Any]


class ReadyResponse(msgspec.Struct):
    """The first message of an engine to each API server: what the engine was started with."""

    max_model_len: int
    num_gpu_blocks: int
    block_size: int
    dp_stats_address: str | None
    dtype: str
    vllm_version: str
    world_size: int
    data_parallel_size: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    decode_context_parallel_size: int
    data_parallel_rank: int
    max_num_seqs: int
    max_num_batched_tokens: int
    instance_id: str
    supports_lora: bool
    max_loras: int
    mamba_block_size: int | None = None
    kv_cache_size_tokens: int | None = None
    kv_cache_max_concurrency: float | None = None
    kv_events_config: dict[str, Any] | None = None
    weight_transfer_backend: str | None = None
    enable_sleep_mode: bool = False
    supports_draft_weight_updates: bool = False
    effective_attention_block_size: int | None = None
    coord_store_port: int = 0
    coordinator_input_address: str | None = None
    coordinator_output_address: str | None = None


# Requests.


class LoraRequest(msgspec.Struct, array_like=True, omit_defaults=True):
    """An adapter that a request needs."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class Placeholder(msgspec.Struct):
    """The tokens of a medium in a prompt."""

    offset: int
    length: int
    is_embed: Any = None


class MediumFeature(msgspec.Struct):
    """A medium of a prompt. `data` are its processed arrays, which nothing reads here."""

    data: Any
    modality: str
    identifier: str
    mm_position: Placeholder
    mm_hash: str | None = None


class LateInteraction(msgspec.Struct, array_like=True):
    """A query whose tokens documents are compared with later, or such a document."""

    mode: str
    query_key: str
    query_uses: int | None = None


class PoolingParams(msgspec.Struct, array_like=True):
    """How a prompt is pooled."""

    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    task: str | None = None
    requires_token_ids: bool = False
    skip_reading_prefix_cache: bool | None = None
    late_interaction_params: LateInteraction | None = None


class EngineRequest(msgspec.Struct, array_like=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A request, as the frontend sends it after `ADD`."""

    request_id: str
    prompt_token_ids: list[int] | None
    mm_features: list[MediumFeature] | None
    sampling_params: dict[str, Any] | None
    """Values other than vLLM's defaults; the route that takes token ids declares the fields."""
    pooling_params: PoolingParams | None
    arrival_time: float
    lora_request: LoraRequest | None
    cache_salt: str | None
    data_parallel_rank: int | None
    prompt_embeds: Any = None
    prompt_is_token_ids: list[bool] | None = None
    client_index: int = 0
    current_wave: int = 0
    priority: int = 0
    trace_headers: dict[str, str] | None = None
    resumable: bool = False
    external_req_id: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    abort_immediately: bool = False
    session_id: str | None = None
    kv_hints: Any = None


# Outputs.


class Event(msgspec.Struct):
    """An event of a request, and its time on the monotonic clock in seconds."""

    type: EventKind
    timestamp: float


class Logprobs(NamedTuple):
    """Scores of new tokens: a row for each, with the token itself first."""

    logprob_token_ids: Array
    logprobs: Array
    sampled_token_ranks: Array
    cu_num_generated_tokens: list[int] | None = None


class PromptLogprobs(NamedTuple):
    """Scores of the prompt's tokens but the first."""

    logprob_token_ids: Array
    logprobs: Array
    selected_token_ranks: Array
    cu_num_generated_tokens: list[int] | None = None
    cu_num_generated_tokens_tensor: Array | None = None


class PrefillStats(msgspec.Struct):
    """Where the tokens of a prompt came from."""

    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_local_cached_tokens: int = 0
    num_external_cached_tokens: int = 0
    num_cache_creation_tokens: int = 0


class RequestError(msgspec.Struct):
    """Why a request was refused."""

    code: str
    message: str
    retryable: bool = False


class EngineOutput(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """New tokens of a request, or its end."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: Logprobs | None = None
    new_prompt_logprobs_tensors: PromptLogprobs | None = None
    pooling_output: Array | None = None
    finish_reason: Finish | None = None
    stop_reason: int | str | None = None
    events: list[Event] | None = None
    kv_transfer_params: Mapping[str, Any] | None = None
    ec_transfer_params: Mapping[str, Any] | None = None
    trace_headers: Mapping[str, str] | None = None
    prefill_stats: PrefillStats | None = None
    routed_experts: Array | None = None
    num_nans_in_logits: int = 0
    mm_cache_miss_hashes: list[str] | None = None
    new_sampling_mask: Any = None
    spec_decode_metrics: dict[str, Any] | None = None
    prompt_token_id_logprobs: Array | None = None
    error: RequestError | None = None


class PrefixCacheStats(msgspec.Struct):
    """Lookups in the prefix cache since the last message."""

    reset: bool = False
    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    hits_by_source: dict[str, int] = {}


class DraftStats(msgspec.Struct):
    """Drafted tokens since the last message."""

    num_spec_tokens: int
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = []
    num_draft_tokens_per_pos: list[int] = []


class IterationDetails(msgspec.Struct):
    """The batch of a step: sequences without an output token before it, all others, and how long it took."""

    iteration_index: int
    num_ctx_requests: int
    num_ctx_tokens: int
    num_generation_requests: int
    num_generation_tokens: int
    elapsed_ms: float
    num_encoder_inputs: int = 0
    num_encoder_output_tokens: int = 0
    is_dummy: bool = False


class SchedulerStats(msgspec.Struct, kw_only=True):
    """The scheduler after a step."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_skipped_waiting_reqs: int = 0
    num_kv_fetch_reqs_by_stage: dict[str, int] = {}
    step_counter: int = 0
    current_wave: int = 0
    kv_cache_usage: float = 0.0
    iteration_details: IterationDetails | None = None
    prefix_cache_stats: PrefixCacheStats = msgspec.field(default_factory=PrefixCacheStats)
    connector_prefix_cache_stats: PrefixCacheStats | None = None
    kv_cache_eviction_events: list[Any] = []
    spec_decoding_stats: DraftStats | None = None
    kv_connector_stats: dict[str, Any] | None = None
    ec_connector_stats: dict[str, Any] | None = None
    waiting_lora_adapters: dict[str, int] = {}
    running_lora_adapters: dict[str, int] = {}
    cudagraph_stats: dict[str, Any] | None = None
    perf_stats: dict[str, Any] | None = None


class UtilityOutput(msgspec.Struct, array_like=True, gc=False):
    """The answer to a call. A result is its type, which is always None, and its value."""

    call_id: int
    failure_message: str | None = None
    result: tuple[None, Any] | None = None


class EngineOutputs(msgspec.Struct, array_like=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A message of an engine to one API server, or to the coordinator, after a step."""

    engine_index: int = 0
    outputs: list[EngineOutput] = []
    scheduler_stats: SchedulerStats | None = None
    timestamp: float = 0.0
    utility_output: UtilityOutput | None = None
    finished_requests: set[str] | None = None
    wave_complete: int | None = None
    start_wave: int | None = None
    weight_version: str | None = None

    def __post_init__(self) -> None:
        if self.timestamp == 0.0:
            self.timestamp = time.monotonic()


# The codec.


class MessageError(ValueError):
    """Raised for bytes that are no message of release 0.33."""


def _raw_array(code: int, data: memoryview) -> memoryview:
    """Return the bytes of an array. Other extensions would be pickled objects, which are never unpacked."""
    if code != RAW_BYTES:
        raise MessageError(f"a message has an extension of code {code}, which may be a pickled object")
    return data


def _reader(kind: type[T], name: str) -> Callable[[bytes], T]:
    """Return a function that reads a message. It raises MessageError, also for fields that release 0.33 has not."""
    decoder = msgpack.Decoder(kind, ext_hook=_raw_array)

    def read(frame: bytes) -> T:
        try:
            return decoder.decode(frame)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise MessageError(f"{name} of {len(frame)} bytes is none of vLLM {VLLM_VERSION}: {error}") from None

    return read


read_request = _reader(EngineRequest, "a request")
read_outputs = _reader(EngineOutputs, "an output")
read_aborted = _reader(list[str], "an abort")
"""The ids of requests that are to end."""
read_call = _reader(tuple[int, int, str, list[Any]], "a call")
"""Index of the API server, number of the call, name, arguments."""
read_wave = _reader(tuple[int, int | None], "the start of a wave")
"""The number of a wave that starts, and the rank that knows of it already."""
read_welcome = _reader(Welcome, "the answer to HELLO")

encode = msgpack.Encoder().encode
"""Return the bytes of a message without arrays of its own frames."""


class Frames:
    """The frames of one message with arrays: `add` each array, then encode the message with what it returned."""

    def __init__(self) -> None:
        self._arrays: list[bytes] = []

    def add(self, values: "np.typing.NDArray[Any]", is_tensor: bool = False) -> Array:
        """Return what stands for an array in the message. A tensor has the name of its type, another its code."""
        data = np.ascontiguousarray(values)
        name = data.dtype.name if is_tensor else data.dtype.str
        if data.nbytes < INLINE_BYTES:
            return name, data.shape, msgpack.Ext(RAW_BYTES, data.tobytes())
        self._arrays.append(data.tobytes())
        return name, data.shape, len(self._arrays)

    def encoded(self, message: msgspec.Struct) -> list[bytes]:
        """Return all frames."""
        return [encode(message), *self._arrays]
