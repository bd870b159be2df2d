"""The program: its flags, their translation to settings of `blis serve`, and the command.

Its command line, with `SIM_` variables and a `--config` file, is converted to our syntax first."""

import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blis_sim.options import OptionError, check_options, option, options_from, options_of, section
from blis_sim.options.command_line import CONFIG_FLAG, flags_of, parse_command_line
from blis_sim.options.option import load_json
from mockserve.options.content import ToolArgumentOptions
from mockserve.options.engine_features import KVEventsConfig, TimingOptions
from mockserve.options.faults import FAILURE_TYPES
from mockserve.options.serve import ServeOptions
from mockserve.options.server import check_deviation, milliseconds
from mockserve.options.vllm_command_line import NO_EFFECT_FLAG, is_flag, read_settings
from mockserve.options.vllm_command_line import rewritten as from_vllm
from mockserve.options.vllm_flags import ACTS, VllmFlag, read_table

_WITH_BOUNDED_DEVIATION = (
    "time_to_first_token", "inter_token_latency", "kv_cache_transfer_latency", "time_to_generate_image",
)  # fmt: skip


def _duration(help_text: str) -> str:
    value: str = option("0", help_text, metavar="TIME")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceSimOptions:
    """Settings with llm-d-inference-sim's names, defaults and limits."""

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
    global_cache_hit_threshold: float = option(
        0.0,
        "Fraction of a prompt that the KV cache must hold for it to be answered; a request's own cache_hit_threshold "
        "wins.",
        at_least=0,
        at_most=1,
    )
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
    failure_types: tuple[str, ...] = option((), "How they fail (default: all ways).", choices=tuple(FAILURE_TYPES))
    fake_metrics: str = option("", "Figures for the metrics page, constant or by a function of time.", metavar="JSON")
    enable_request_id_headers: bool = option(False, "Give every reply an X-Request-Id.")
    enable_sleep_mode: bool = option(False, "Accepted: VLLM_SERVER_DEV_MODE=1 opens the sleep routes.", hidden=True)
    default_embedding_dimensions: int = option(384, "Length of an embedding.", at_least=1)
    dataset_path: str | None = option(None, "Answers by prompt, in a SQLite file.")
    dataset_table_name: str = option("llmd", "Table of it.")
    tool_call_extra_call_probability: float = option(
        45.0, "Percent of the calls that another call follows.", at_least=0, at_most=100
    )
    tool_arguments: ToolArgumentOptions = section(ToolArgumentOptions)
    ssl_certfile: str = option("", "Certificate to serve HTTPS with.")
    ssl_keyfile: str = option("", "Its key.")
    self_signed_certs: bool = option(False, "Serve HTTPS with a certificate that is made at the start.")
    log_http: bool = option(False, "Log requests and replies with their bodies, but for streams.")
    serve_arguments: str = option("", "Arguments of blis serve, as a JSON list.", hidden=True)
    omni: bool = option(False, "Answer conversations with pictures, too, where X-Send-Image or chance says so.")
    image_emission_rate: float = option(
        0.0, "Percent of the conversations that a picture answers.", at_least=0, at_most=100
    )
    time_to_generate_image: str = _duration("Time that a picture takes.")
    time_to_generate_image_std_dev: str = _duration("Its standard deviation.")
    accepted_without_effect: tuple[str, ...] = option((), "Flags that mean nothing here.", hidden=True)

    def __post_init__(self) -> None:
        check_options(self)
        if not self.model:
            raise OptionError("--model must be given")
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise OptionError(
                f"--max-cpu-loras must be at least --max-loras, {self.max_loras}, got {self.max_cpu_loras}"
            )
        for name in _WITH_BOUNDED_DEVIATION:
            check_deviation(f"--{name.replace('_', '-')}", self.ms(name), self.ms(f"{name}_std_dev"))

    def ms(self, name: str) -> float:
        """Return the named duration in milliseconds. Raises OptionError for an invalid duration."""
        return milliseconds(f"--{name.replace('_', '-')}", getattr(self, name))


TOKENS_PER_MEDIUM = 1
"""Prompt tokens of a picture: llm-d-inference-sim counts the text alone, and here a picture must count something."""
BLOCKS_WITHOUT_CACHE = 1 << 20
"""Number of KV blocks without a simulated cache, large enough to never run out."""


_ALIKE = (
    *("model", "mode", "seed", "max_model_len", "max_num_seqs", "block_size", "omni", "image_emission_rate"),
    *("lora_modules", "max_loras", "max_cpu_loras", "enable_request_id_headers", "dataset_path", "dataset_table_name"),
    *("ssl_certfile", "ssl_keyfile", "self_signed_certs", "log_http", "fake_metrics", "accepted_without_effect"),
)
"""Settings that `blis serve` has under the same name, with the same meaning."""


def serve_options(options: InferenceSimOptions, environment: Mapping[str, str], rank: int) -> ServeOptions:
    """Return the options for the server of one data-parallel rank. Raises OptionError."""
    words = json.loads(options.serve_arguments or "[]")
    passed = parse_command_line(ServeOptions, words, reads_environment=False).values
    return options_from(ServeOptions, **{**_settings(options, environment, rank), **passed})


def _settings(options: InferenceSimOptions, environment: Mapping[str, str], rank: int) -> dict[str, Any]:
    """Return the settings of `blis serve` by name."""
    names = options.served_model_name or (options.model,)
    return dict(
        **{name: getattr(options, name) for name in _ALIKE},
        served_model_name=names,
        port=options.port and options.port + rank,
        max_waiting_requests=options.max_waiting_queue_length,
        max_body_mb=options.max_request_body_size_mb,
        total_kv_blocks=options.kv_cache_size + 1 if options.enable_kvcache else BLOCKS_WITHOUT_CACHE,
        enable_prefix_caching=options.enable_kvcache,
        enable_prompt_tokens_details=options.enable_kvcache,
        global_cache_hit_threshold=options.global_cache_hit_threshold if options.enable_kvcache else None,
        task=("generate", "embed"),
        hf_overrides=json.dumps({"hidden_size": options.default_embedding_dimensions, "is_matryoshka": True}),
        tokens_per_medium=TOKENS_PER_MEDIUM,
        enable_scale_out=True,
        shares_port_with_grpc=True,
        time_to_generate_image_ms=options.ms("time_to_generate_image"),
        time_to_generate_image_std_dev_ms=options.ms("time_to_generate_image_std_dev"),
        enable_lora=True,  # llm-d-inference-sim loads adapters at any time
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        tool_call_extra_probability=options.tool_call_extra_call_probability / 100,
        **{each.name: each.of(options.tool_arguments) for each in options_of(ToolArgumentOptions)},
        startup_s=options.ms("startup_duration") / 1000,
        kv_transfer_config=json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"}),
        fault_rates=_fault_rates(options),
        fault_seed=options.seed,
        data_parallel_rank=rank,
        kv_events_config=_kv_events(options, environment, rank),
        pod_headers=_pod_headers(options, environment, rank),
        offers_ready_route=True,
        lenient_start=True,  # llm-d-inference-sim has no such checks
        **_times(options),
    )


def _times(options: InferenceSimOptions) -> dict[str, Any]:
    """Return the latency settings."""
    by_length = options.ms("time_to_first_token") == 0 and options.ms("time_to_first_token_std_dev") == 0
    set_times = [each.name for each in options_of(TimingOptions) if each.name.endswith("_ms")]
    return {
        **{name: options.ms(name.removesuffix("_ms")) for name in set_times},
        "latency_calculator": options.latency_calculator or ("per-token" if by_length else "constant"),
        "time_factor_under_load": options.time_factor_under_load,
    }


def _fault_rates(options: InferenceSimOptions) -> tuple[str, ...]:
    kinds = options.failure_types or FAILURE_TYPES
    rate = options.failure_injection_rate / 100 / len(kinds)
    return tuple(f"{FAILURE_TYPES[kind]}={rate}" for kind in kinds) if rate else ()


def _kv_events(options: InferenceSimOptions, environment: Mapping[str, str], rank: int) -> str:
    """Return the KV events configuration: events need a cache and an address for the topic."""
    pod_ip = environment.get("POD_IP", "")
    if not options.enable_kvcache or not pod_ip:
        return ""
    config = KVEventsConfig(
        enable_kv_cache_events=True,
        endpoint=options.zmq_endpoint,
        replay_endpoint=options.kv_events_replay_endpoint or None,
        buffer_steps=options.kv_events_replay_queue_size,
        topic=f"kv@{pod_ip}:{options.port + rank}@{options.model}",
    )
    return json.dumps(asdict(config))


def _pod_headers(options: InferenceSimOptions, environment: Mapping[str, str], rank: int) -> tuple[str, ...]:
    """Return the headers that name the answering pod, if its name is known."""
    found = {"x-inference-pod": environment.get("POD_NAME"), "x-inference-namespace": environment.get("POD_NAMESPACE")}
    known = {name: value for name, value in found.items() if value}
    if known:
        known["x-inference-port"] = str(options.port + rank)
    return tuple(f"{name}={value}" for name, value in known.items())


def rewritten(arguments: list[str]) -> list[str]:
    """Convert llm-d-inference-sim's command line, also with vLLM's flags, to ours. Raises BlisError for bad values."""
    return _in_our_syntax(arguments, flags_of(InferenceSimOptions), os.environ)


def run(options: InferenceSimOptions) -> int:
    """Serve until stopped by a signal. Returns the exit code."""
    from mockserve.options.environment import read_environment
    from mockserve.server import serve

    variables: Mapping[str, str] = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", **os.environ}
    if options.hash_seed:
        variables = {**variables, "PYTHONHASHSEED": options.hash_seed}
    one = options.data_parallel_rank
    ranks = range(options.data_parallel_size) if one < 0 else [one]
    return serve([serve_options(options, variables, rank) for rank in ranks], read_environment(variables))


TABLE = Path(__file__).parent / "flags.csv"
SWITCH_VALUES = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
VARIABLE_PREFIX = "SIM_"

SERVE_ARGUMENTS_FLAG = "--serve-arguments"
"""Our flag for the part of the command line that `blis serve` reads."""

_LEVEL = re.compile(r"^-v=?([0-9]+)$")
"""The one flag of a letter, with its value behind it."""
_SERVICE_ADDRESS = "tcp://"
"""Beginning of the value that Kubernetes gives SIM_PORT where a service is called sim."""
_DEPLOYMENT = ("cluster", "deployment")
_ALSO_WITH_SET_TIMES = "scheduling_policy"
"""The one setting of the simulated deployment that acts where times are set."""
_ONE_PROCESS_ONLY = "api_server_count"
"""Adapters that are loaded at run time need a server of one process."""


def _in_our_syntax(arguments: Sequence[str], own_flags: set[str], variables: Mapping[str, str]) -> list[str]:
    """Convert llm-d-inference-sim's command line, also with vLLM's flags, to ours. Raises BlisError for bad values.

    `own_flags` are the flags of the program here. Flags of vLLM that act in `blis serve` alone become one
    `--serve-arguments`.
    """
    own_table, vllm_table = read_table(TABLE), read_table()
    table = {**vllm_table, **own_table}
    passed_flags = _passed_flags(vllm_table) - own_table.keys() - own_flags
    path, given = _without_config([_LEVEL.sub(r"--v=\1", each) for each in arguments])
    path = path or variables.get(f"{VARIABLE_PREFIX}CONFIG", "")
    unknown: list[str] = []
    settings = [
        *(_from_file(path, table, own_flags, unknown) if path else ()),
        *_from_variables(variables, table, own_flags),
    ]
    plain, words = _without_words([*settings, *_with_plain_switches(given, table)], table)
    found = from_vllm(plain, own_flags | passed_flags, table)
    own, passed = _split(found, table, passed_flags)
    return [*_naming([*unknown, *words], own), *([SERVE_ARGUMENTS_FLAG, json.dumps(passed)] if passed else ())]


def _passed_flags(vllm_table: Mapping[str, VllmFlag]) -> set[str]:
    """Return the flags of vLLM that `blis serve` acts on where times are set."""
    return {
        flag
        for setting in options_of(ServeOptions)
        if setting.path[:2] != _DEPLOYMENT or setting.name == _ALSO_WITH_SET_TIMES
        if setting.name != _ONE_PROCESS_ONLY
        for flag in setting.flags
        if flag in vllm_table and vllm_table[flag].here == ACTS
    }


def _without_config(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the path behind the last `--config`, and the other arguments."""
    path = ""
    rest: list[str] = []
    left = iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        if name != CONFIG_FLAG:
            rest.append(argument)
            continue
        path = value if equals else next(left, "")
        if not path:
            raise OptionError(f"{CONFIG_FLAG} must name a YAML file, got nothing")
    return path, rest


def _from_file(path: str, table: Mapping[str, VllmFlag], own_flags: set[str], unknown: list[str]) -> Iterator[str]:
    """Yield the arguments that a YAML file stands for; keys that are no flags go to `unknown`."""
    for key, value in read_settings(path).items():
        flag = f"--{key.replace('_', '-')}"
        if flag not in table and flag not in own_flags:
            unknown.append(flag)
        elif isinstance(value, bool):
            yield from _with_plain_switches([f"{flag}={str(value).lower()}"], table)
        elif isinstance(value, str) and flag in table and table[flag].is_switch:
            yield from _with_plain_switches([f"{flag}={value}"], table)
        elif isinstance(value, list):
            yield from [flag, *map(_text, value)] if value else ()
        elif value is not None:
            yield from (flag, _text(value))


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _from_variables(variables: Mapping[str, str], table: Mapping[str, VllmFlag], own_flags: set[str]) -> Iterator[str]:
    """Yield the arguments that variables such as SIM_MAX_NUM_SEQS stand for; those that name no flag are not ours."""
    for name in sorted(variables):
        flag = f"--{name.removeprefix(VARIABLE_PREFIX).lower().replace('_', '-')}"
        if not name.startswith(VARIABLE_PREFIX) or not (flag in own_flags or flag in table) or flag == CONFIG_FLAG:
            continue
        value = variables[name]
        if flag == "--port" and value.startswith(_SERVICE_ADDRESS):
            continue
        if flag in table and table[flag].is_switch:
            yield from _with_plain_switches([f"{flag}={value}"], table)
        elif flag in table and table[flag].number == "+":
            yield from (flag, *_items(name, value))
        else:
            yield from (flag, value)


def _items(name: str, value: str) -> list[str]:
    """Return the items of a list in a variable: a JSON list, one JSON object, or texts with commas between them."""
    if not value.startswith("["):
        return [value] if value.startswith("{") else value.split(",")
    try:
        items = load_json(value)
    except ValueError as error:
        raise OptionError(f"{name} must be a list, comma-separated or in JSON, got {value!r}") from error
    return [_text(each) for each in items]


def _with_plain_switches(arguments: Iterable[str], table: Mapping[str, VllmFlag]) -> Iterator[str]:
    """Yield the arguments, each switch with a value as the switch or its opposite: vLLM's switches have no values."""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        flag = table.get(name.replace("_", "-"))
        if not equals or flag is None or not flag.is_switch:
            yield argument
        elif value.lower() not in SWITCH_VALUES:
            raise OptionError(f"{name} must be true or false, got {value!r}")
        elif SWITCH_VALUES[value.lower()]:
            yield name
        elif flag.opposites:
            yield f"--no-{name.removeprefix('--')}"


def _without_words(arguments: Sequence[str], table: Mapping[str, VllmFlag]) -> tuple[list[str], list[str]]:
    """Return the arguments up to `--` without the words that are no flag's value, and these words.

    As in the original, a switch takes no value from the next word, and such words have no meaning.
    """
    kept: list[str] = []
    words: list[str] = []
    room: float = 0
    for number, argument in enumerate(arguments):
        if argument == "--":
            return kept, words + list(arguments[number + 1 :])
        if is_flag(argument):
            room = _most_values(argument, table)
        elif room:
            room -= 1
        else:
            words.append(argument)
            continue
        kept.append(argument)
    return kept, words


def _most_values(argument: str, table: Mapping[str, VllmFlag]) -> float:
    """Return how many of the words behind a flag are its values."""
    name, equals, _ = argument.partition("=")
    flag = table.get(name.replace("_", "-"))
    if equals or (flag is not None and flag.is_switch):
        return 0
    return math.inf if flag is not None and flag.number == "+" else 1


def _split(
    arguments: Sequence[str], table: Mapping[str, VllmFlag], passed_flags: set[str]
) -> tuple[list[str], list[str]]:
    """Return the arguments of the program's own flags, and those of the flags that are passed on."""
    own: list[str] = []
    passed: list[str] = []
    left = iter(arguments)
    for argument in left:
        flag = table.get(argument)
        to = passed if flag is not None and any(spelling in passed_flags for spelling in flag.spellings) else own
        to.append(argument)
        has_value = argument == NO_EFFECT_FLAG or (flag is not None and not flag.is_switch)
        to += itertools.islice(left, has_value)
    return own, passed


def _naming(more: Sequence[str], arguments: list[str]) -> list[str]:
    """Return the arguments with `more` among those that are named as without effect."""
    if not more:
        return arguments
    if NO_EFFECT_FLAG not in arguments:
        return [*arguments, NO_EFFECT_FLAG, json.dumps(list(more))]
    place = arguments.index(NO_EFFECT_FLAG) + 1
    named = [*arguments[place].split(","), *more]
    return [*arguments[:place], json.dumps(named), *arguments[place + 1 :]]
