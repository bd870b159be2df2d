"""The keyword arguments of `server`. Written by `python docs/generate.py`."""

from collections.abc import Sequence

from blis_sim.api.settings import ClusterSettings, Json, Path, Policy


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
