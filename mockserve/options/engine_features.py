"""Settings of vLLM's engine other than scheduling (LoRA, queue limits, KV events), and set latencies."""

import typing
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from blis_sim.engine.latency.request_timing import RequestTiming
from blis_sim.options import OptionError, check_options, names_in, option, options_of
from blis_sim.options.option import json_object

if typing.TYPE_CHECKING:
    from blis_sim.engine.offloading import Device

KV_EVENTS_FLAG = "--kv-events-config"


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventsConfig:
    """vLLM's configuration of KV-cache events, with its fields and defaults."""

    enable_kv_cache_events: bool = False
    publisher: str = ""
    """`zmq` or `null`; empty means zmq if events are enabled."""
    endpoint: str = "tcp://*:5557"
    """Endpoint of events: bound if it has a wildcard or is a local path, else connected."""
    replay_endpoint: str | None = None
    """Endpoint for batches that were missed."""
    buffer_steps: int = 10_000
    """Number of batches kept for replay to subscribers."""
    hwm: int = 100_000
    """Number of batches that wait for a slow subscriber; further ones are dropped."""
    max_queue_size: int = 100_000
    topic: str = ""

    def __post_init__(self) -> None:
        if not self.publisher:
            object.__setattr__(self, "publisher", "zmq" if self.enable_kv_cache_events else "null")
        if self.publisher not in ("zmq", "null"):
            raise OptionError(f"{KV_EVENTS_FLAG}: publisher must be zmq or null, got {self.publisher!r}")

    @property
    def publishes(self) -> bool:
        """Whether events are published."""
        return self.enable_kv_cache_events and self.publisher == "zmq"

    def of_rank(self, rank: int) -> "KVEventsConfig":
        """Return the settings of one data-parallel rank: ports count up from that of rank 0."""
        replay = self.replay_endpoint
        return KVEventsConfig(
            **{
                **asdict(self),
                "endpoint": _of_rank(self.endpoint, rank),
                "replay_endpoint": None if replay is None else _of_rank(replay, rank),
            }
        )


def read_kv_events_config(text: str) -> KVEventsConfig:
    """Parse the configuration; empty text gives the default. Raises OptionError for an unknown field or wrong type."""
    if not text:
        return KVEventsConfig()
    given = json_object(KV_EVENTS_FLAG, text)
    types = typing.get_type_hints(KVEventsConfig)
    unknown = sorted(given.keys() - types.keys())
    if unknown:
        known = ", ".join(field.name for field in fields(KVEventsConfig))
        raise OptionError(f"{KV_EVENTS_FLAG}: unknown field {unknown[0]!r}, known are {known}")
    for name, value in given.items():
        if not isinstance(value, types[name]) or (isinstance(value, bool) and types[name] is not bool):
            raise OptionError(f"{KV_EVENTS_FLAG}: {name} has a value of the wrong type: {value!r}")
    found: dict[str, Any] = given
    return KVEventsConfig(**found)


def _of_rank(endpoint: str, rank: int) -> str:
    if rank == 0:
        return endpoint
    if endpoint.startswith("inproc"):
        return f"{endpoint}_dp{rank}"
    base, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        raise OptionError(
            f"{KV_EVENTS_FLAG}: {endpoint!r} must be a TCP endpoint with a port for several data-parallel ranks"
        )
    return endpoint if port == "0" else f"{base}:{int(port) + rank}"


KV_TRANSFER_FLAG = "--kv-transfer-config"
ROLES = ("kv_producer", "kv_consumer", "kv_both")


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """The part of vLLM's KV transfer configuration with an effect on this server."""

    connector: str
    engine_id: str
    offloaded_gib: float = 0.0
    """CPU memory of all GPUs of an instance to which the connector copies KV blocks."""
    offloaded_gib_per_gpu: float = 0.0
    """CPU memory for KV blocks, if given per GPU."""
    devices: tuple["Device", ...] = ()
    """Devices behind that memory, those of vLLM's tiers in file systems."""
    tiers: tuple[str, ...] = ()
    """Parts of the tiers behind CPU memory that are not modelled."""
    others: tuple[str, ...] = ()
    """The connectors of a MultiConnector without the one whose store is modelled. It copies to all of them, and loads
    from the first that has a block."""

    @property
    def is_on(self) -> bool:
        return bool(self.connector)

    @property
    def has_store(self) -> bool:
        """Whether the connector copies KV blocks to CPU memory of a known size."""
        return self.offloaded_gib + self.offloaded_gib_per_gpu > 0


def read_transfer_config(text: str) -> TransferConfig:
    """Parse the JSON object; an empty text means off. Raises OptionError for values that vLLM refuses."""
    if not text:
        return TransferConfig("", "")
    given = json_object(KV_TRANSFER_FLAG, text)
    connector, role = given.get("kv_connector"), given.get("kv_role")
    if not isinstance(connector, str) or not connector:
        raise OptionError(f"{KV_TRANSFER_FLAG}: kv_connector must name a connector, got {connector!r}")
    if role not in ROLES:
        raise OptionError(f"{KV_TRANSFER_FLAG}: kv_role must be one of {', '.join(ROLES)}, got {role!r}")
    extra = given.get("kv_connector_extra_config") or {}
    if not isinstance(extra, dict):
        raise OptionError(f"{KV_TRANSFER_FLAG}: kv_connector_extra_config must be an object, got {extra!r}")
    children = _children_of(extra) if connector == "MultiConnector" else [(connector, extra)]
    stores = [_store_of(*child) for child in children]
    modelled = next((place for place, store in enumerate(stores) if any(store)), 0)
    others = [name for place, (name, _) in enumerate(children) if place != modelled or not any(stores[place])]
    tiers = [_tiers_of(each) for _, each in children]
    return TransferConfig(
        connector,
        str(given.get("engine_id") or uuid.uuid4()),
        *stores[modelled],
        devices=tiers[modelled][0] if any(stores[modelled]) else (),
        tiers=tuple(name for place, each in enumerate(tiers) if place == modelled for name in each[1]),
        others=tuple(others) if connector == "MultiConnector" else (),
    )


def _children_of(extra: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the name and the extra configuration of each connector of a MultiConnector. Raises OptionError."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    given = extra.get("connectors")
    where = f"{KV_TRANSFER_FLAG}: connectors of kv_connector_extra_config"
    if not isinstance(given, list) or not given:
        raise OptionError(f"{where} must be a list of configurations, got {given!r}")
    for each in given:
        own = (each.get("kv_connector_extra_config") or {}) if isinstance(each, dict) else None
        name = each.get("kv_connector") if isinstance(each, dict) else None
        if not isinstance(name, str) or not name or not isinstance(own, dict):
            raise OptionError(f"{where} must each name a kv_connector, got {each!r}")
        found.append((name, own))
    return found


TIER_TYPES = ("example", "fs", "p2p", "obj", "kvcr")
"""The types of tiers that vLLM has."""
USUAL_DEVICE = "nvme_gen4"
"""The class of a device whose speed a tier does not state, as vLLM's own settings do not."""


def _tiers_of(extra: Mapping[str, Any]) -> tuple[tuple["Device", ...], list[str]]:
    """Return the devices of a connector's tiers, and what of these is not modelled. Raises OptionError."""
    given = extra.get("secondary_tiers", [])
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise OptionError(f"{KV_TRANSFER_FLAG}: secondary_tiers must be a list of tier configurations, got {given!r}")
    if extra.get("spec_name") != "TieringOffloadingSpec":  # other specifications have none, and vLLM ignores them
        return (), []
    devices: list[Device] = []
    missing: list[str] = []
    if "backpressure" in extra or any("backpressure" in each for each in given):
        missing.append("backpressure")
    if extra.get("eviction_policy", "lru") != "lru":
        missing.append(f"eviction_policy {extra['eviction_policy']}")
    for number, each in enumerate(given):
        kind = each.get("type")
        if kind not in TIER_TYPES and "module_path" not in each:
            found = f"got {kind!r}, vLLM has {', '.join(TIER_TYPES)}"
            raise OptionError(f"{KV_TRANSFER_FLAG}: type of secondary_tiers[{number}] must name a tier, {found}")
        if kind == "fs":
            devices.append(_device_of(number, each))
        else:
            missing.append(str(kind))
    return tuple(devices), missing


def _device_of(number: int, tier: Mapping[str, Any]) -> "Device":
    """Return the device of a tier in a file system. Raises OptionError."""
    from blis_sim.engine.offload_file import device_of
    from blis_sim.options.file_fields import FieldError, read
    from blis_sim.options.kv_offload import Tier

    within = f"secondary_tiers[{number}]"
    content = {key: value for key, value in tier.items() if key not in ("backpressure", "module_path")}
    if not content.keys() & {"read_bandwidth", "write_bandwidth", "base_latency"}:
        content.setdefault("device_class", USUAL_DEVICE)
    try:
        keys: Tier = read(Tier, content, within)
    except FieldError as error:
        raise OptionError(error.about(KV_TRANSFER_FLAG)) from None
    device = device_of(keys)
    if device is None:
        needed = "device_class, or read_bandwidth, write_bandwidth and base_latency, must be given"
        raise OptionError(f"{KV_TRANSFER_FLAG}: {within}: {needed}")
    return device


_SIMPLE_OFFLOAD_BYTES = 8.0 * 2**30
"""CPU memory that SimpleCPUOffloadConnector takes for all GPUs by default."""
_LMCACHE_GIB_PER_GPU = 5.0
"""CPU memory that LMCache takes for each GPU by default."""


def _store_of(connector: str, extra: Mapping[str, Any]) -> tuple[float, float]:
    """Return the GiB of CPU memory of a connector for all GPUs, and per GPU. Raises OptionError."""
    if connector == "OffloadingConnector":
        return _number(extra, "cpu_bytes_to_use", 0.0) / 2**30, 0.0
    if connector == "SimpleCPUOffloadConnector":
        if "cpu_bytes_to_use_per_rank" in extra:
            return 0.0, _number(extra, "cpu_bytes_to_use_per_rank", 0.0) / 2**30
        return _number(extra, "cpu_bytes_to_use", _SIMPLE_OFFLOAD_BYTES) / 2**30, 0.0
    if connector in ("LMCacheConnectorV1", "LMCacheMPConnector"):
        return 0.0, _number(extra, "lmcache.max_local_cpu_size", _LMCACHE_GIB_PER_GPU)
    return 0.0, 0.0


def _number(extra: Mapping[str, Any], name: str, default: float) -> float:
    value = extra.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**60:
        raise OptionError(f"{KV_TRANSFER_FLAG}: {name} of kv_connector_extra_config must be a size, got {value!r}")
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Limits of the queue, above which requests are refused."""

    max_num_queued_reqs: int | None = option(
        None,
        "Requests that may be unfinished at once; more are refused with status 503.",
        at_least=0,
        heading="Limits of the queue",
    )
    max_num_queued_tokens: int | None = option(
        None, "Prompt tokens without an answer yet from which on requests are refused with status 503.", at_least=0
    )

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSharingOptions:
    """KV-cache events, and KV transfer between servers."""

    kv_events_config: str = option(
        "",
        "Where to publish KV-cache events, as vLLM takes it. Needs the extra kv-events.",
        metavar="JSON",
        heading="KV-cache events and KV transfer",
    )
    data_parallel_rank: int = option(
        0, "Which of several servers that share a load this is; KV events name it.", at_least=0
    )
    kv_transfer_config: str = option(
        "", "Take over prompts computed elsewhere and hand over those computed here, as vLLM takes it.", metavar="JSON"
    )
    kv_transfer_gb_per_s: float = option(50.0, "How fast each GPU takes over KV blocks, in 10^9 bytes.", above=0)
    kv_transfer_latency_ms: float = option(0.0, "What each takeover takes besides.", at_least=0)
    prefix_caching_hash_algo: str = option(
        "sha256",
        "How KV blocks are hashed where KV-cache events are published or blocks are transferred.",
        choices=names_in("mockserve.kv_events.naming", "ALGORITHMS"),
    )

    def __post_init__(self) -> None:
        check_options(self)
        _ = self.transfer, self.events  # validates the values

    @property
    def transfer(self) -> TransferConfig:
        """The configuration of KV transfer."""
        return read_transfer_config(self.kv_transfer_config)

    @property
    def events(self) -> KVEventsConfig:
        """Settings of the publication of KV-cache events."""
        return read_kv_events_config(self.kv_events_config)


CALCULATORS = ("engine", "constant", "per-token")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingOptions:
    """Set latencies of requests in milliseconds. Requests then run in --max-num-seqs independent slots."""

    latency_calculator: str = option(
        "engine",
        "Where latencies come from: the simulated engine, set times, or set times with a first token by prompt length.",
        choices=CALCULATORS,
        heading="Set times instead of an engine's",
    )
    time_to_first_token_ms: float = option(0.0, "Set time to the first token.", at_least=0)
    time_to_first_token_std_dev_ms: float = option(0.0, "Its standard deviation.", at_least=0)
    inter_token_latency_ms: float = option(0.0, "Set time between tokens.", at_least=0)
    inter_token_latency_std_dev_ms: float = option(0.0, "Its standard deviation.", at_least=0)
    prefill_overhead_ms: float = option(0.0, "Part of the time to the first token that is always there.", at_least=0)
    prefill_time_per_token_ms: float = option(0.0, "What each prompt token that is not cached adds to it.", at_least=0)
    prefill_time_std_dev_ms: float = option(0.0, "Standard deviation of the two together.", at_least=0)
    kv_cache_transfer_latency_ms: float = option(
        0.0, "Time to the first token of a prompt computed by another instance.", at_least=0
    )
    kv_cache_transfer_latency_std_dev_ms: float = option(0.0, "Its standard deviation.", at_least=0)
    kv_cache_transfer_time_per_token_ms: float = option(
        0.0, "Time to the first token of a prompt computed by another instance, per prompt token.", at_least=0
    )
    kv_cache_transfer_time_std_dev_ms: float = option(0.0, "Its standard deviation.", at_least=0)
    time_factor_under_load: float = option(
        1.0, "How many times as long set times are with all slots in use as with one.", at_least=1
    )

    def __post_init__(self) -> None:
        check_options(self)
        if not self.sets_times:
            for setting in options_of(TimingOptions):
                if setting.of(self) != setting.default:
                    raise OptionError(f"{setting.label} needs --latency-calculator constant or per-token")

    @property
    def sets_times(self) -> bool:
        """Whether latencies are set; otherwise the engine simulates them."""
        return self.latency_calculator != "engine"

    def request_timing(self, num_slots: int, seed: int) -> RequestTiming | None:
        """Return the set latencies for `num_slots` slots, drawn with `seed`; None if the engine simulates latencies."""
        if not self.sets_times:
            return None
        return RequestTiming(
            first_token_us=self.time_to_first_token_ms * 1000,
            first_token_std_us=self.time_to_first_token_std_dev_ms * 1000,
            token_gap_us=self.inter_token_latency_ms * 1000,
            token_gap_std_us=self.inter_token_latency_std_dev_ms * 1000,
            per_token=self.latency_calculator == "per-token",
            prefill_overhead_us=self.prefill_overhead_ms * 1000,
            prefill_per_token_us=self.prefill_time_per_token_ms * 1000,
            prefill_std_us=self.prefill_time_std_dev_ms * 1000,
            transfer_us=self.kv_cache_transfer_latency_ms * 1000,
            transfer_std_us=self.kv_cache_transfer_latency_std_dev_ms * 1000,
            transfer_per_token_us=self.kv_cache_transfer_time_per_token_ms * 1000,
            transfer_per_token_std_us=self.kv_cache_transfer_time_std_dev_ms * 1000,
            load_factor=self.time_factor_under_load,
            num_slots=num_slots,
            seed=seed,
        )
