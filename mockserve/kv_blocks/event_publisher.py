"""Publishes batches on a PUB socket and sends old ones again to those who ask on a ROUTER socket.

A message has three frames: the topic, the number of the batch in 8 bytes, and the batch. Who has missed some asks for
all from a number on; the last answer has the number -1. Facts: vllm/distributed/kv_events.py.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import zmq
import zmq.asyncio

from blis_sim.engine.kv_cache.changes import CacheChange
from blis_sim.options import OptionError
from mockserve.kv_blocks.event_messages import BatchEncoder
from mockserve.options.kv_events import FLAG, KVEventsConfig

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class KVEventPublisher:
    """Publishes for one data-parallel rank, from one event loop only. The endpoints are those of the rank."""

    def __init__(self, config: KVEventsConfig, encoder: BatchEncoder, rank: int = 0) -> None:
        """Raises OptionError when an endpoint cannot be used."""
        self.config = config
        self._encoder = encoder
        self._rank = rank
        self._topic = config.topic.encode()
        self._next_number = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._context = zmq.asyncio.Context()
        self._answering: asyncio.Task[None] | None = None
        self._router: zmq.asyncio.Socket | None = None
        # Sending on a PUB socket never waits, so that needs no coroutine.
        self._pub = zmq.Context(self._context).socket(zmq.PUB)
        self._pub.set_hwm(config.hwm)
        try:
            self._open()
        except zmq.ZMQError as error:
            self.close()
            raise OptionError(
                f"{FLAG}: {config.endpoint} or {config.replay_endpoint} cannot be used: {error.strerror}"
            ) from error

    def publish(self, changes: Sequence[CacheChange]) -> None:
        """One batch of what happened in a step."""
        batch = self._encoder.encode(changes, time.time(), self._rank)
        if batch is None:
            return
        number = self._next_number
        self._next_number += 1
        self._kept.append((number, batch))
        self._pub.send_multipart((self._topic, number.to_bytes(8, "big"), batch))

    def close(self) -> None:
        """Publish no more and answer no more."""
        if self._answering is not None:
            self._answering.cancel()
        self._pub.close(linger=0)
        if self._router is not None:
            self._router.close(linger=0)
        self._context.term()

    def _open(self) -> None:
        endpoint = self.config.endpoint
        if "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://")):
            self._pub.bind(endpoint)
        else:
            self._pub.connect(endpoint)
        if self.config.replay_endpoint is not None:
            self._router = self._context.socket(zmq.ROUTER)
            # All that is kept, and the end, must fit in the queue of a subscriber that reads slowly.
            self._router.set_hwm(2 * (self.config.buffer_steps + 1))
            self._router.bind(self.config.replay_endpoint)
            self._answering = asyncio.get_running_loop().create_task(self._answer(self._router))

    async def _answer(self, router: zmq.asyncio.Socket) -> None:
        with suppress(asyncio.CancelledError):
            while True:
                frames = await router.recv_multipart()
                if len(frames) == 3:
                    await self._send_again(router, frames[0], int.from_bytes(frames[2], "big"))

    async def _send_again(self, router: zmq.asyncio.Socket, client: bytes, first: int) -> None:
        for number, batch in list(self._kept):
            if number >= first:
                await router.send_multipart((client, b"", self._topic, number.to_bytes(8, "big"), batch))
        await router.send_multipart((client, b"", b"", END_OF_REPLAY, b""))
