"""Hashing, publishing and transfer of KV blocks, set up from the options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.request import ExternalPrompt
from blis_sim.installation import install_command
from blis_sim.options import OptionError
from mockserve.kv_events.naming import FastNaming, NameBlocks, VllmNaming, root_hash
from mockserve.options.engine_features import KV_EVENTS_FLAG, KVSharingOptions
from mockserve.options.environment import ServerEnvironment

if TYPE_CHECKING:
    from mockserve.kv_events.events import KVEventPublisher


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTransfer:
    """One instance's end of KV transfers. `bytes_per_block` is the share of each GPU; GPUs send in parallel."""

    engine_id: str
    host: str
    port: int
    tp: int
    num_prompt_blocks: Callable[[int], int]
    """Number of blocks kept for a prompt, by its number of tokens."""
    bytes_per_block: float
    gb_per_s: float
    latency_us: int

    def incoming(self, params: Mapping[str, Any] | None, prompt_tokens: int) -> ExternalPrompt | None:
        """Return the part of a prompt that another instance has computed, by the parameters of a request."""
        if not params or not params.get("do_remote_prefill") or not params.get("remote_block_ids"):
            return None
        stated_tokens = params.get("remote_num_tokens")
        num_tokens = (
            min(prompt_tokens, stated_tokens) if isinstance(stated_tokens, int) and stated_tokens > 0 else prompt_tokens
        )
        transfer_us = self.latency_us + round(
            self.num_prompt_blocks(num_tokens) * self.bytes_per_block / (self.gb_per_s * 1e3)
        )
        return ExternalPrompt(num_tokens, transfer_us)

    def outgoing(self, params: Mapping[str, Any] | None, num_tokens: int, request_id: str) -> dict[str, Any] | None:
        """Return the transfer parameters for the instance that fetches the blocks of `num_tokens` tokens; None unless
        requested.

        The block numbers are placeholders: no instance of this server reads them.
        """
        if not params or not params.get("do_remote_decode"):
            return None
        num_blocks = self.num_prompt_blocks(num_tokens)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1, num_blocks + 1))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": self.tp,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": num_tokens,
            "remote_blocks_expiry_time": None,
            "remote_registration_generation": 0,
            "transfer_mode": "pull",
        }


def block_naming(options: KVSharingOptions, environment: ServerEnvironment, config: EngineConfig) -> NameBlocks:
    """Return the hashing of blocks. Raises OptionError if the algorithm needs a missing library."""
    size, lookahead = config.block_size_tokens, config.num_hash_lookahead_tokens
    if not options.events.publishes:
        return FastNaming(size, lookahead)
    algorithm = options.prefix_caching_hash_algo
    try:
        root = root_hash(algorithm, environment.python_hash_seed)
    except ImportError as error:
        raise _missing_library(f"--prefix-caching-hash-algo {algorithm}") from error
    return VllmNaming(size, algorithm, root, lookahead)


def open_publisher(
    options: KVSharingOptions, environment: ServerEnvironment, config: EngineConfig, rank: int
) -> "KVEventPublisher | None":
    """Return the publisher of a data-parallel rank; None unless the options enable events. Raises OptionError if an
    endpoint cannot be opened."""
    events = options.events
    if not events.publishes:
        return None
    try:
        from mockserve.kv_events.events import BatchEncoder, KVEventPublisher
    except ImportError as error:
        raise _missing_library(KV_EVENTS_FLAG) from error
    encoder = BatchEncoder(
        config.block_size_tokens,
        environment.kv_events_use_int_hashes,
        config.num_hash_lookahead_tokens,
        config.cache_groups,
    )
    return KVEventPublisher(events.of_rank(rank), encoder, rank)


def _missing_library(flag: str) -> OptionError:
    return OptionError(f"{flag} needs more libraries: {install_command('kv-events')}")
