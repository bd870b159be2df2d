"""KV-cache events: vLLM's messages, and the socket that publishes them."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec
import zmq
import zmq.asyncio

from blis_sim.engine.kv_cache.changes import (
    AllBlocksCleared,
    BlocksStored,
    CacheChange,
    CpuBlocksRemoved,
    CpuBlockStored,
    DeviceBlockStored,
)
from blis_sim.engine.memory.kv_groups import CHUNKED, FULL, LATENT, MIXED, SLIDING, STATE, KVCacheGroupSpec
from blis_sim.options import OptionError
from mockserve.kv_events.naming import ExtraKeys, TokenBlocks, as_number
from mockserve.options.engine_features import KV_EVENTS_FLAG, KVEventsConfig

MEDIUM = "GPU"
CPU_MEDIUM = "CPU"
DEVICE_MEDIUM = "STORAGE"
_KINDS = {
    FULL: "full_attention",
    MIXED: "full_attention",
    LATENT: "mla_attention",
    SLIDING: "sliding_window",
    CHUNKED: "chunked_local_attention",
    STATE: "mamba",
}
"""vLLM's names in events, by the names of its KV cache specifications."""


class _Stored(msgspec.Struct, omit_defaults=True, gc=False, tag="BlockStored"):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class _Removed(msgspec.Struct, omit_defaults=True, gc=False, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class _Cleared(msgspec.Struct, omit_defaults=True, gc=False, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[_Stored | _Removed | _Cleared]
    data_parallel_rank: int | None = None


class BatchEncoder:
    """Encodes cache changes as messages. `numbers_hashes` selects 64-bit numbers instead of whole digests."""

    def __init__(
        self, hash_tokens: int, numbers_hashes: bool, lookahead_tokens: int = 0, groups: Sequence[KVCacheGroupSpec] = ()
    ) -> None:
        """Contents have one hash per `hash_tokens` tokens. Empty `groups` means one group with full attention."""
        self._hash_tokens = hash_tokens
        self._lookahead_tokens = lookahead_tokens
        self._groups = groups or (KVCacheGroupSpec(FULL, hash_tokens),)
        self._numbers_hashes = numbers_hashes
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, changes: Iterable[CacheChange], unix_time_s: float, rank: int) -> bytes | None:
        """Return one encoded batch; None without events."""
        events = [event for change in changes if (event := self._event(change)) is not None]
        return self._encoder.encode(_Batch(unix_time_s, events, rank)) if events else None

    def _event(self, change: CacheChange) -> _Stored | _Removed | _Cleared | None:
        if isinstance(change, BlocksStored):
            blocks, span, size = change.request.blocks, change.span, self._hash_tokens
            assert isinstance(blocks, TokenBlocks)
            first, end = change.first, min(change.end, len(blocks.digests) // span * span)
            if first >= end:
                return None
            all_of_them = range(first + span - 1, end, span)
            kept = all_of_them if change.kept is None else [index for index in change.kept if index < end]
            spec = self._groups[change.group]
            return _Stored(
                block_hashes=[self._hash(blocks.digests[index]) for index in kept],
                parent_block_hash=self._hash(blocks.digests[first - 1]) if first else None,
                token_ids=list(blocks.token_ids[first * size : end * size]),
                block_size=span * size,
                lora_id=blocks.lora.number if blocks.lora else None,
                medium=MEDIUM,
                lora_name=blocks.lora.name if blocks.lora else None,
                extra_keys=[_untagged_keys(blocks.extra_keys[index - span + 1]) for index in kept],
                group_idx=change.group,
                kv_cache_spec_kind=_KINDS[spec.kind],
                kv_cache_spec_sliding_window=spec.reach_tokens if spec.kind == SLIDING else None,
                lookahead_token_ids=self._lookahead(blocks, kept),
            )
        if isinstance(change, AllBlocksCleared):
            return _Cleared()
        if isinstance(change, CpuBlockStored | DeviceBlockStored):
            # vLLM names the block and no tokens, unless `self_describing_kv_events` are on.
            if not isinstance(change.identity, bytes):
                return None
            medium, locality = CPU_MEDIUM, None
            if isinstance(change, DeviceBlockStored):
                medium, locality = DEVICE_MEDIUM, change.locality or None
            known = [self._hash(change.identity)]
            return _Stored(known, None, [], 0, None, medium, None, group_idx=change.group, locality=locality)
        if isinstance(change, CpuBlocksRemoved):
            digests = [each for each in change.identities if isinstance(each, bytes)]
            return _Removed(list(map(self._hash, digests)), CPU_MEDIUM, change.group) if digests else None
        if not isinstance(change.identity, bytes):
            return None
        return _Removed([self._hash(change.identity)], MEDIUM, change.group)

    def _lookahead(self, blocks: TokenBlocks, kept: Sequence[int]) -> list[list[int]] | None:
        if not self._lookahead_tokens:
            return None
        starts = [(index + 1) * self._hash_tokens for index in kept]
        return [list(blocks.token_ids[start : start + self._lookahead_tokens]) for start in starts]

    def _hash(self, digest: bytes) -> int | bytes:
        return as_number(digest) if self._numbers_hashes else digest


def _untagged_keys(keys: ExtraKeys) -> tuple[str, ...] | None:
    """Return the extra keys of a hash without their tags, as in events."""
    return None if keys is None else tuple(tagged[1] for tagged in keys)


END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class KVEventPublisher:
    """Publishes the events of one data-parallel rank at the rank's endpoints. Use it from one event loop only."""

    def __init__(self, config: KVEventsConfig, encoder: BatchEncoder, rank: int = 0) -> None:
        """Raises OptionError if an endpoint cannot be opened."""
        self.config = config
        self._encoder = encoder
        self._rank = rank
        self._topic = config.topic.encode()
        self._next_number = 0
        self._replay_buffer: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._context = zmq.asyncio.Context()
        self._replay_task: asyncio.Task[None] | None = None
        self._router: zmq.asyncio.Socket | None = None
        # Sending on a PUB socket never blocks, so it needs no coroutine.
        self._pub = zmq.Context(self._context).socket(zmq.PUB)
        self._pub.set_hwm(config.hwm)
        try:
            endpoint = self.config.endpoint
            if "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://")):
                self._pub.bind(endpoint)
            else:
                self._pub.connect(endpoint)
            if self.config.replay_endpoint is not None:
                self._router = self._context.socket(zmq.ROUTER)
                # All kept batches and the end mark must fit in the queue of a slow subscriber.
                self._router.set_hwm(2 * (self.config.buffer_steps + 1))
                self._router.bind(self.config.replay_endpoint)
                self._replay_task = asyncio.get_running_loop().create_task(self._answer(self._router))
        except zmq.ZMQError as error:
            self.close()
            raise OptionError(
                f"{KV_EVENTS_FLAG}: {config.endpoint} or {config.replay_endpoint} cannot be used: {error.strerror}"
            ) from error

    def publish(self, changes: Sequence[CacheChange]) -> None:
        """Publish the changes of one step as one batch."""
        batch = self._encoder.encode(changes, time.time(), self._rank)
        if batch is None:
            return
        number = self._next_number
        self._next_number += 1
        self._replay_buffer.append((number, batch))
        self._pub.send_multipart((self._topic, number.to_bytes(8, "big"), batch))

    def close(self) -> None:
        """Stop publishing and replaying."""
        if self._replay_task is not None:
            self._replay_task.cancel()
        self._pub.close(linger=0)
        if self._router is not None:
            self._router.close(linger=0)
        self._context.term()

    async def _answer(self, router: zmq.asyncio.Socket) -> None:
        with suppress(asyncio.CancelledError):
            while True:
                frames = await router.recv_multipart()
                if len(frames) == 3:
                    await self._send_again(router, frames[0], int.from_bytes(frames[2], "big"))

    async def _send_again(self, router: zmq.asyncio.Socket, client: bytes, first: int) -> None:
        for number, batch in list(self._replay_buffer):
            if number >= first:
                await router.send_multipart((client, b"", self._topic, number.to_bytes(8, "big"), batch))
        await router.send_multipart((client, b"", b"", END_OF_REPLAY, b""))
