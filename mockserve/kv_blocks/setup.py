"""From the options to naming and publishing; nothing of ZeroMQ is imported where no events are wanted."""

from typing import TYPE_CHECKING

from blis_sim.engine.config import EngineConfig
from blis_sim.options import OptionError
from mockserve.kv_blocks.hashes import root_hash
from mockserve.kv_blocks.naming import FastNaming, NameBlocks, VllmNaming
from mockserve.options.engine_features import KV_EVENTS_FLAG, KVSharingOptions
from mockserve.options.environment import ServerEnvironment

if TYPE_CHECKING:
    from mockserve.kv_blocks.events import KVEventPublisher


def block_naming(options: KVSharingOptions, environment: ServerEnvironment, config: EngineConfig) -> NameBlocks:
    """How blocks are named. Raises OptionError when the algorithm needs a library that is not there."""
    size, lookahead = config.block_size_tokens, config.num_hash_lookahead_tokens
    if not options.events.publishes:
        return FastNaming(size, lookahead)
    algorithm = options.prefix_caching_hash_algo
    try:
        root = root_hash(algorithm, environment.python_hash_seed)
    except ImportError as error:
        raise _missing(f"--prefix-caching-hash-algo {algorithm}") from error
    return VllmNaming(size, algorithm, root, lookahead)


def open_publisher(
    options: KVSharingOptions, environment: ServerEnvironment, config: EngineConfig, rank: int
) -> "KVEventPublisher | None":
    """Who publishes for a data-parallel rank, if anybody does. Raises OptionError when it cannot."""
    events = options.events
    if not events.publishes:
        return None
    try:
        from mockserve.kv_blocks.events import BatchEncoder, KVEventPublisher
    except ImportError as error:
        raise _missing(KV_EVENTS_FLAG) from error
    encoder = BatchEncoder(
        config.block_size_tokens, environment.kv_events_use_int_hashes, config.num_hash_lookahead_tokens
    )
    return KVEventPublisher(events.of_rank(rank), encoder, rank)


def _missing(flag: str) -> OptionError:
    return OptionError(f"{flag} needs more libraries: pip install 'blis-mockserve[kv-events]'")
