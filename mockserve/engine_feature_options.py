"""The settings of `blis serve` that concern what vLLM's engine does beside scheduling: queue limits, KV events."""

from dataclasses import dataclass

from blis_options import OptionError, option
from mockserve.kv_events.config import FLAG as KV_EVENTS_FLAG
from mockserve.kv_events.config import KVEventsConfig, read_kv_events_config
from mockserve.kv_events.hashing import ALGORITHMS
from mockserve.network_options import NetworkOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFeatureOptions(NetworkOptions):
    """Limits of the queue, and what others are told of the KV cache."""

    dp: int = option(
        1,
        "Data-parallel ranks: engines of their own behind one endpoint, which shares requests out as vLLM does.",
        flags=("--dp", "--data-parallel-size"),
        at_least=1,
    )
    max_num_queued_reqs: int | None = option(
        None, "Requests that may be unfinished at once; more are refused with status 503.", at_least=0
    )
    max_num_queued_tokens: int | None = option(
        None, "Prompt tokens without an answer yet from which on requests are refused with status 503.", at_least=0
    )
    kv_events_config: str = option(
        "", "Where to publish KV-cache events, as vLLM takes it. Needs the extra kv-events.", metavar="JSON"
    )
    data_parallel_rank: int = option(
        0, "Which of several servers that share a load this is; KV events name it.", at_least=0
    )
    prefix_caching_hash_algo: str = option(
        "sha256", "How KV blocks are hashed where others are told of them.", choices=ALGORITHMS
    )

    def __post_init__(self) -> None:
        NetworkOptions.__post_init__(self)
        if self.kv_events.publishes and self.scheduling != "vllm":
            raise OptionError(f"{KV_EVENTS_FLAG} needs --scheduling vllm")

    @property
    def kv_events(self) -> KVEventsConfig:
        """Where KV-cache events go."""
        return read_kv_events_config(self.kv_events_config)
