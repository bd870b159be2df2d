"""The flags of llm-d-inference-sim that act here. The others of that project, and of vLLM, are taken and only named."""

from dataclasses import dataclass

from blis_sim.options import OptionError, check_options, option, section
from mockserve.options.content import ToolArgumentOptions
from mockserve.options.fake_metrics import milliseconds

MOST_STD_DEV_FRACTION = 0.3
"""Largest standard deviation as a fraction of the mean, the limit of that project."""

FAILURE_TYPES = (
    "rate_limit",
    "invalid_api_key",
    "context_length",
    "server_error",
    "invalid_request",
    "model_not_found",
)


def _duration(help_text: str) -> str:
    value: str = option("0", help_text, metavar="TIME")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceSimOptions:
    """Names, defaults and limits are that project's."""

    model: str = option("", "Model to pretend to serve; any name will do (default: SIM_MODEL).")
    served_model_name: tuple[str, ...] = option((), "Names that clients may use (default: the model).")
    port: int = option(8000, "Port to listen on; 0 takes a free one.", at_least=0, at_most=65535)
    mode: str = option("random", "Content of answers: made-up text, or the prompt again.", choices=("random", "echo"))
    seed: int = option(100100100, "Seed of answers, times and faults.")
    max_model_len: int = option(1024, "Most tokens of prompt and answer together.", at_least=1)
    max_num_seqs: int = option(5, "Requests that run at once.", at_least=1)
    max_waiting_queue_length: int = option(1000, "Requests that may wait; more get status 429.", at_least=0)
    max_request_body_size_mb: int = option(4, "Largest body of a request.", at_least=1, at_most=512)
    latency_calculator: str = option(
        "",
        "How the first token is timed; without it by which times are given.",
        choices=("", "constant", "per-token"),
    )
    time_to_first_token: str = _duration("Time to the first token.")
    time_to_first_token_std_dev: str = _duration("Its standard deviation.")
    inter_token_latency: str = _duration("Time between tokens.")
    inter_token_latency_std_dev: str = _duration("Its standard deviation.")
    prefill_overhead: str = _duration("Part of the time to the first token that is always there.")
    prefill_time_per_token: str = _duration("What each prompt token that is not cached adds to it.")
    prefill_time_std_dev: str = _duration("Standard deviation of the two together.")
    kv_cache_transfer_latency: str = _duration("Time to the first token of a prompt computed elsewhere.")
    kv_cache_transfer_latency_std_dev: str = _duration("Its standard deviation.")
    kv_cache_transfer_time_per_token: str = _duration("The same by prompt length.")
    kv_cache_transfer_time_std_dev: str = _duration("Its standard deviation.")
    time_factor_under_load: float = option(1.0, "How many times as long all takes under full load.", at_least=1)
    startup_duration: str = _duration("How long after the start the port opens.")
    enable_kvcache: bool = option(False, "Find equal prompt beginnings in a KV cache.")
    kv_cache_size: int = option(1024, "KV blocks.", at_least=1)
    block_size: int = option(16, "Tokens per KV block.", at_least=8, at_most=128)
    hash_seed: str = option("", "What block hashes start from (default: PYTHONHASHSEED).")
    zmq_endpoint: str = option("tcp://127.0.0.1:5557", "Where KV events go, with --enable-kvcache and POD_IP.")
    kv_events_replay_endpoint: str = option("", "Where to ask for KV events that were missed.")
    kv_events_replay_queue_size: int = option(
        1024, "Batches kept for subscribers that ask for missed ones.", at_least=1
    )
    lora_modules: tuple[str, ...] = option((), "Adapters, each a JSON object with name and path.")
    max_loras: int = option(1, "Adapters that may run at once.", at_least=1)
    max_cpu_loras: int | None = option(None, "Adapters kept in memory (default: as many as may run).", at_least=1)
    data_parallel_size: int = option(1, "Ranks, each on a port of its own.", at_least=1, at_most=8)
    data_parallel_rank: int = option(-1, "The one rank to be.", at_least=-1, at_most=7)
    failure_injection_rate: float = option(0.0, "Percent of the requests that fail.", at_least=0, at_most=100)
    failure_types: tuple[str, ...] = option((), "How they fail (default: all ways).", choices=FAILURE_TYPES)
    fake_metrics: str = option("", "Figures for the metrics page, constant or by a function of time.", metavar="JSON")
    enable_request_id_headers: bool = option(False, "Give every reply an X-Request-Id.")
    enable_sleep_mode: bool = option(False, "Accepted: VLLM_SERVER_DEV_MODE=1 opens the sleep routes.", hidden=True)
    dataset_path: str | None = option(None, "Answers by prompt, in a SQLite file.")
    dataset_table_name: str = option("llmd", "Table of it.")
    tool_call_extra_call_probability: float = option(
        45.0, "Percent of the calls that another call follows.", at_least=0, at_most=100
    )
    tool_arguments: ToolArgumentOptions = section(ToolArgumentOptions)
    ssl_certfile: str = option("", "Certificate to serve HTTPS with.")
    ssl_keyfile: str = option("", "Its key.")
    accepted_without_effect: tuple[str, ...] = option((), "Flags that mean nothing here.", hidden=True)

    def __post_init__(self) -> None:
        check_options(self)
        if not self.model:
            raise OptionError("--model must be given")
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise OptionError(
                f"--max-cpu-loras must be at least --max-loras, {self.max_loras}, got {self.max_cpu_loras}"
            )
        for name in ("time_to_first_token", "inter_token_latency", "kv_cache_transfer_latency"):
            mean, deviation = self.ms(name), self.ms(f"{name}_std_dev")
            if deviation > MOST_STD_DEV_FRACTION * mean:
                flag = f"--{name.replace('_', '-')}"
                raise OptionError(f"{flag}-std-dev must be at most 30 % of {flag}, {mean:g} ms, got {deviation:g} ms")

    def ms(self, name: str) -> float:
        """Return one of the durations in milliseconds. Raises OptionError when it is none."""
        return milliseconds(f"--{name.replace('_', '-')}", getattr(self, name))
