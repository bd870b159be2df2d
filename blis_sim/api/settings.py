"""The keyword arguments of all functions. Written by `python docs/generate.py`."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, TypeAlias, TypedDict

Path: TypeAlias = str | PathLike[str]
Json: TypeAlias = str | Mapping[str, Any]
"""A JSON text, or the object itself."""
Policy: TypeAlias = str | Callable[..., Any]
"""The name of a policy, or a class or function of a module in its place."""


class EngineSettings(TypedDict, total=False):
    model: Path
    engine: Policy
    vllm_version: str
    hardware: str
    tp: int
    tensor_parallel_size: int
    pp: int
    pipeline_parallel_size: int
    dp: int
    data_parallel_size: int
    moe_comm_backend: str
    model_config_folder: Path | None
    hardware_config: Path | None
    latency_model: Policy
    alpha_coeffs: Sequence[float]
    beta_coeffs: Sequence[float]
    coefficients: Path | None
    operators: str | None
    moe_backend: str
    enforce_eager: bool
    collectives: str
    topology: Path
    network_config: Path | None
    gpu_memory_utilization: float | None
    block_size: int | None
    block_size_in_tokens: int | None
    total_kv_blocks: int | None
    num_gpu_blocks_override: int | None
    kv_cache_memory_bytes: int | None
    cpu_offload_gb: float
    kv_cache_dtype: str
    quantization: str
    dtype: str
    enable_expert_parallel: bool
    max_num_seqs: int | None
    max_num_running_reqs: int | None
    max_num_batched_tokens: int | None
    max_num_scheduled_tokens: int | None
    max_num_active_seqs: int | None
    performance_mode: str
    long_prefill_token_threshold: int
    long_prefill_token_threshold_adaptive: bool
    max_model_len: int
    scheduling_policy: str
    scheduler: str
    priority_policy: str
    priority_base: str
    priority_age_weight: float
    preemption_policy: str
    slo_deadlines: str
    late_requests: str
    urgency_window: int
    urgency_step: int
    urgency_ceiling: int
    urgency_interval: int
    min_preempt_priority_gap: int
    preemption_resume: str
    timer_resolution: int
    async_scheduling: bool | None
    speculative_config: Json
    spec_method: str
    spec_model: str
    spec_tokens: int | None
    speculative_acceptance_rate: Sequence[float]
    speculative_draft_time: int | None
    speculative_seed: int
    enable_chunked_prefill: bool
    disable_chunked_mm_input: bool
    enable_prefix_caching: bool
    scheduler_reserve_full_isl: bool | None
    watermark: float
    prefill_schedule_interval: int
    kv_cpu_blocks: int
    kv_offloading_size: float | None
    kv_offload_policy: str
    kv_offload_threshold: float
    kv_transfer_bandwidth: float
    kv_transfer_base_latency: int


class ClusterSettings(EngineSettings, total=False):
    num_instances: int
    admission_policy: Policy
    admission_latency: int
    token_bucket_capacity: float
    token_bucket_refill_rate: float
    routing_policy: Policy
    routing_latency: int
    routing_scorers: str
    lora_scorer_weight: float | None
    snapshot_refresh_interval: int
    cache_signal_delay: int
    policy_config: Path | None
    flow_control: bool
    saturation_detector: str
    queue_depth_threshold: float
    kv_cache_util_threshold: float
    max_concurrency: int | None
    usage_limit_threshold: float
    dispatch_order: str
    fairness_policy: str
    gateway_slo_targets: str
    slo_targets: str
    max_gateway_queue_depth: int
    per_band_capacity: int
    queue_shedding: bool
    request_ttl: int
    in_flight_eviction: bool
    dispatch_tick_interval: int
    prefill_instances: int
    decode_instances: int
    prefill_decode_instances: int
    encode_instances: int
    encode_decider: str
    pd_decider: str
    pd_prefix_threshold: int
    pd_transfer_bandwidth: float
    pd_transfer_base_latency: float
    pd_transfer_contention: bool
    prefill_routing_scorers: str
    decode_routing_scorers: str
    prefill_tp: int
    prefill_pp: int
    prefill_hardware: str
    prefill_latency_model: str
    prefill_max_model_len: int
    decode_tp: int
    decode_pp: int
    decode_hardware: str
    decode_latency_model: str
    decode_max_model_len: int
    autoscaler: Path | None
    cold_start: str | None
    kill: str
    model_autoscaler_interval_us: float


class ReportSettings(TypedDict, total=False):
    ttft_p90: str | None
    ttft_p95: str | None
    ttft_p99: str | None
    itl_p90: str | None
    itl_p95: str | None
    itl_p99: str | None
    e2e_p90: str | None
    e2e_p95: str | None
    e2e_p99: str | None
    goodput: Sequence[str]
    detectors: Sequence[str]
    saturation_config: Path | None
    saturation_report: Path | None
    saturation_final_window: str
    fitness_weights: str
    metric: Sequence[Policy]
    results_path: Path | None
    metrics_path: Path | None
    trace_level: str
    counterfactual_k: int
    decisions_path: Path | None
    trace_output: Path | None
    record_itl: bool
    itl_output: Path | None
    metrics_dir: Path | None
    graph_output: Path | None
    plot: Path | None
    html: Path | None
    provenance: Path | None
    min_attainment: float


class TraceSettings(TypedDict, total=False):
    trace_data: Path | None
    reissue: bool
    session_mode: str
    session_pool: int
    speedup: float
    scale_pauses: bool
    think_time_dist: str | None
    phase_average: int
    intervals: int
    ignore_server_settings: bool
    include_failed: bool


class SimulationSettings(ClusterSettings, ReportSettings, total=False):
    kv_offload_config: Path | None
    enable_lora: bool
    max_loras: int
    max_cpu_loras: int | None
    lora_load_ms: float
    lora_swap_ms: float
    lora_config: Path | None
    lora_adapter_capacity: int | None
    lora_load_base_latency_us: float | None
    lora_load_bandwidth_bytes_us: float | None
    lora_footprint_bytes_per_rank: float | None


class RunSettings(SimulationSettings, total=False):
    workload: str | None
    rate: float | None
    stages: Sequence[str]
    arrival: str | None
    arrival_cv: float | None
    prefix_tokens: int
    prompt_tokens: int
    prompt_tokens_stdev: float | None
    prompt_tokens_min: int | None
    prompt_tokens_max: int | None
    output_tokens: int
    output_tokens_stdev: float | None
    output_tokens_min: int | None
    output_tokens_max: int | None
    workload_spec: Path | None
    concurrency: int
    think_time_ms: int
    num_requests: int | None
    timeout: int | None
    seed: int | None
    horizon: int | None


class ReplaySettings(SimulationSettings, TraceSettings, total=False):
    horizon: int | None
    think_time_ms: int | None
    seed: int


class SweepSettings(RunSettings, TraceSettings, total=False):
    sample: int | None
    sample_seed: int
    output: Path
    overwrite: bool
    parquet: Path | None
    gpu_cost_per_hour: float | None
    processes: int | None
    ray: bool
    ray_address: str | None


class PlanSettings(RunSettings, TraceSettings, total=False):
    confidence: float | None
    gpus: Sequence[str]
    tp_sizes: Sequence[int]
    pp_sizes: Sequence[int]
    dp_sizes: Sequence[int]
    shapes: Sequence[str]
    precisions: Sequence[str]
    kv_cache_dtypes: Sequence[str]
    speculative_configs: Sequence[str]
    step_tokens: Sequence[int]
    exhaustive: bool
    max_gpus: int
    prices: Path | None
    processes: int | None
    ray: bool
    ray_address: str | None
    output: Path | None
    manifests: Path | None


class CalibrateSettings(TypedDict, total=False):
    trace_data: Path | None
    sim_results: Path | None
    second_recording: str | None
    second_itl_data: Path | None
    itl_data: Path | None
    report: Path | None
    html: Path | None
    plots: Path | None
    fail_over: str
    warmup_requests: int
    network_rtt_us: int
    network_bandwidth_mbps: float
    goodput: Sequence[str]
    sim_metrics: Path | None
    hit_rate_tolerance_pp: float
    ttft_mape_threshold: float
    adapter_mape_threshold: float


class FitSettings(EngineSettings, total=False):
    output: Path
    seed: int
    reissue: bool
    ignore_server_settings: bool
    design: Path | None
    check: bool
    max_concurrency: int


class ServeSettings(ClusterSettings, total=False):
    instance_ports: int | None
    ports: str
    count: int | None
    enable_instance_control: bool
    seed: int
    tokenizer: Path | None
    chat_template: str | None
    chat_template_content_format: str
    default_chat_template_kwargs: Json | None
    trust_request_chat_template: bool
    exclude_tools_when_tool_choice_none: bool
    generation_config: Path
    override_generation_config: Json | None
    default_output_tokens: int | None
    enable_auto_tool_choice: bool
    tool_call_parser: str | None
    tool_call_probability: float
    tool_call_extra_probability: float
    min_tool_call_integer_param: int
    max_tool_call_integer_param: int
    min_tool_call_number_param: float
    max_tool_call_number_param: float
    min_tool_call_array_param_length: int
    max_tool_call_array_param_length: int
    tool_call_not_required_param_probability: float
    object_tool_call_not_required_field_probability: float
    reasoning_parser: str | None
    default_reasoning_tokens: int | None
    structured_outputs_config: Json | None
    lenient_structured_outputs: bool
    mode: str
    dataset_path: str | None
    dataset_table_name: str
    host: str
    port: int
    api_server_count: int | None
    api_processes: int | None
    uds: Path
    grpc: bool
    ssl_certfile: Path
    ssl_keyfile: Path
    self_signed_certs: bool
    ssl_ca_certs: Path
    ssl_cert_reqs: int
    ssl_ciphers: str
    root_path: str
    api_key: Sequence[str]
    allowed_origins: Sequence[str]
    allowed_methods: Sequence[str]
    allowed_headers: Sequence[str]
    allow_credentials: bool
    middleware: Sequence[str]
    enable_request_id_headers: bool
    h11_max_incomplete_event_size: int
    h11_max_header_count: int
    request_receive_timeout: int
    max_unsent_kib: int
    shutdown_timeout: int
    abrupt_shutdown: bool
    disable_fastapi_docs: bool
    enable_lora: bool
    max_loras: int
    max_cpu_loras: int | None
    lora_load_ms: float
    lora_swap_ms: float
    max_num_queued_reqs: int | None
    max_num_queued_tokens: int | None
    kv_events_config: Json
    data_parallel_rank: int
    kv_transfer_config: Json
    kv_transfer_gb_per_s: float
    kv_transfer_latency_ms: float
    prefix_caching_hash_algo: str
    kv_offload_config: Path | None
    fault_rates: Sequence[str]
    fault_settings: Sequence[str]
    fault_engine: Sequence[str]
    fault_seed: int
    enable_fault_control: bool
    latency_calculator: str
    time_to_first_token_ms: float
    time_to_first_token_std_dev_ms: float
    inter_token_latency_ms: float
    inter_token_latency_std_dev_ms: float
    prefill_overhead_ms: float
    prefill_time_per_token_ms: float
    prefill_time_std_dev_ms: float
    kv_cache_transfer_latency_ms: float
    kv_cache_transfer_latency_std_dev_ms: float
    kv_cache_transfer_time_per_token_ms: float
    kv_cache_transfer_time_std_dev_ms: float
    time_factor_under_load: float
    playback: Path
    playback_match: Sequence[str]
    playback_miss: str
    playback_upstream: str
    playback_timing: str
    playback_speed: float
    playback_chunks: str
    enable_playback_control: bool
    startup_s: float
    startup_delay: float
    log_format: str
    max_waiting_requests: int | None
    max_body_mb: int
    fake_metrics: Json
    enable_prompt_tokens_details: bool
    enable_force_include_usage: bool
    enable_per_request_metrics: bool
    return_tokens_as_token_ids: bool
    response_role: str
    max_logprobs: int
    stream_interval: int
    sse_keep_alive_interval: int
    tokens_per_medium: int
    runner: str
    convert: str
    task: Sequence[str]
    hf_overrides: str
    enable_scale_out: bool
    tokens_only: bool
    enable_state_control: bool
    enable_tokenizer_info_endpoint: bool
    lora_modules: Sequence[str]
    otlp_traces_endpoint: str
    enable_log_requests: bool
    enable_log_outputs: bool
    max_log_len: int | None
    disable_log_stats: bool
    enable_logging_iteration_details: bool
    metric: Sequence[Policy]
    log_http: bool
    access_log: bool
    speed: float | str
    served_model_name: Sequence[str]
    enable_server_load_tracking: bool
    lenient_start: bool
