"""`--kv-events-config`: the JSON object that vLLM takes, with its defaults."""

import typing
from dataclasses import asdict, dataclass, fields
from typing import Any

from blis_sim.options import OptionError
from blis_sim.options.json_text import load_json

FLAG = "--kv-events-config"


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventsConfig:
    """Where events go. Fields and defaults are vLLM's."""

    enable_kv_cache_events: bool = False
    publisher: str = ""
    """`zmq` or `null`; empty is zmq where events are on."""
    endpoint: str = "tcp://*:5557"
    """Bound where it has a wildcard or is a local path, else connected to."""
    replay_endpoint: str | None = None
    """Where to ask for batches that were missed."""
    buffer_steps: int = 10_000
    """Batches kept for those who ask."""
    hwm: int = 100_000
    """Batches waiting for a slow subscriber before some are dropped."""
    max_queue_size: int = 100_000
    topic: str = ""

    def __post_init__(self) -> None:
        if not self.publisher:
            object.__setattr__(self, "publisher", "zmq" if self.enable_kv_cache_events else "null")
        if self.publisher not in ("zmq", "null"):
            raise OptionError(f"{FLAG}: publisher must be zmq or null, got {self.publisher!r}")

    @property
    def publishes(self) -> bool:
        """Whether anything is published at all."""
        return self.enable_kv_cache_events and self.publisher == "zmq"

    def of_rank(self, rank: int) -> "KVEventsConfig":
        """The same for one data-parallel rank: ports count up from that of rank 0."""
        replay = self.replay_endpoint
        return KVEventsConfig(
            **{
                **asdict(self),
                "endpoint": _of_rank(self.endpoint, rank),
                "replay_endpoint": None if replay is None else _of_rank(replay, rank),
            }
        )


def read_kv_events_config(text: str) -> KVEventsConfig:
    """The configuration in `text`, empty for none. Raises OptionError for an unknown field or a wrong type."""
    if not text:
        return KVEventsConfig()
    try:
        given = load_json(text)
    except ValueError as error:
        raise OptionError(f"{FLAG} must be a JSON object, got {text!r}") from error
    if not isinstance(given, dict):
        raise OptionError(f"{FLAG} must be a JSON object, got {text!r}")
    types = typing.get_type_hints(KVEventsConfig)
    unknown = sorted(given.keys() - types.keys())
    if unknown:
        known = ", ".join(field.name for field in fields(KVEventsConfig))
        raise OptionError(f"{FLAG}: unknown field {unknown[0]!r}, known are {known}")
    for name, value in given.items():
        if not isinstance(value, types[name]) or (isinstance(value, bool) and types[name] is not bool):
            raise OptionError(f"{FLAG}: {name} has a value of the wrong type: {value!r}")
    found: dict[str, Any] = given
    return KVEventsConfig(**found)


def _of_rank(endpoint: str, rank: int) -> str:
    if rank == 0:
        return endpoint
    if endpoint.startswith("inproc"):
        return f"{endpoint}_dp{rank}"
    base, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        raise OptionError(f"{FLAG}: {endpoint!r} must be a TCP endpoint with a port for several data-parallel ranks")
    return endpoint if port == "0" else f"{base}:{int(port) + rank}"
