"""The link to a frontend: the handshake, the sockets of a rank, and their end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from blis_sim.wings.engine_core import messages
from blis_sim.wings.engine_core.messages import Greeting, MessageError, ReadyResponse, Welcome

_logger = logging.getLogger(__name__)

LINGER_MS, HANDSHAKE_LINGER_MS = 4000, 5000
GREETING_WITHIN_S = 300.0
"""How long an API server may take from the handshake until it listens: a frontend may have died meanwhile."""
MOST_UNSENT = 100_000
"""Messages that may wait for an API server that does not read; one more ends the link."""
BUFFER_BYTES = 1 << 24

OnFrames = Callable[[list[bytes]], None]


class LinkError(RuntimeError):
    """Raised when a frontend cannot be reached, or is of another release."""


def identity_of(rank: int) -> bytes:
    """Return the name of a rank's sockets."""
    return rank.to_bytes(2, "little")


async def cancelled(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks, and return when they have ended.

    A cancellation of the caller gets through, which would be lost where the end of each task was awaited and ignored.
    """
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Link:
    """The sockets of one rank: a pair for each API server, and those of the coordinator."""

    def __init__(self, context: zmq.asyncio.Context, rank: int, most_bytes: int) -> None:
        """`most_bytes` is the largest frame that is read; the frontend of a larger one is cut off."""
        self.rank = rank
        self.welcome: Welcome | None = None
        self.lost = asyncio.Event()
        """Set when the frontend has gone."""
        self._context = context
        self._plain = zmq.Context(context)
        self._most_bytes = most_bytes
        self._inputs: list[zmq.asyncio.Socket] = []
        self._outputs: list[zmq.Socket[bytes]] = []
        self._coordinator_input: zmq.asyncio.Socket | None = None
        self._coordinator_output: zmq.Socket[bytes] | None = None
        self._handshake: zmq.asyncio.Socket | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def has_coordinator(self) -> bool:
        """Whether the frontend has a coordinator of data-parallel ranks."""
        return self._coordinator_output is not None

    async def greet(self, address: str) -> Welcome:
        """Say HELLO at the address of the handshake, and return the answer. Raises LinkError for a wrong answer."""
        socket = self._socket(zmq.DEALER, HANDSHAKE_LINGER_MS)
        self._handshake = socket
        socket.connect(address)
        await socket.send(messages.encode(Greeting("HELLO")))
        try:
            self.welcome = messages.read_welcome(await socket.recv())
        except MessageError as error:
            raise LinkError(f"the frontend at {address} is not one of vLLM {messages.VLLM_VERSION}: {error}") from None
        return self.welcome

    async def open(self, ready: ReadyResponse, config_hash: str | None) -> None:
        """Connect to all API servers and to the coordinator, and report READY."""
        assert self.welcome is not None
        assert self._handshake is not None
        addresses = self.welcome.addresses
        payload = messages.encode(ready)
        for address in addresses.inputs:
            socket = self._socket(zmq.DEALER, 0)
            self._watch(socket)
            socket.connect(address)
            await socket.send(payload)
            self._inputs.append(socket)
        for address in addresses.outputs:
            self._outputs.append(self._output(address))
        if addresses.coordinator_input is not None and addresses.coordinator_output is not None:
            self._coordinator_input = self._socket(zmq.XSUB, 0)
            self._coordinator_input.connect(addresses.coordinator_input)
            await self._coordinator_input.send(b"\x01")
            self._coordinator_output = self._output(addresses.coordinator_output)
            if await self._coordinator_input.recv() != b"READY":
                raise LinkError("the coordinator of the data-parallel ranks did not say READY first")
        hashed: Any = {} if config_hash is None else {"parallel_config_hash": config_hash}
        await self._handshake.send(messages.encode(Greeting("READY", **hashed)))
        # Left open, it would take this rank's name at the next frontend.
        self._handshake.close(HANDSHAKE_LINGER_MS)
        self._handshake = None

    def listen(self, on_frames: OnFrames) -> None:
        """Call `on_frames` with the frames of each message from now on."""
        for socket in (*self._inputs, *([self._coordinator_input] if self._coordinator_input is not None else ())):
            self._tasks.append(asyncio.ensure_future(self._receive(socket, on_frames)))

    def send(self, client: int, frames: list[bytes]) -> None:
        """Send a message to an API server, or to the coordinator. An unknown receiver gets none."""
        socket = self._coordinator_output if client == messages.COORDINATOR else None
        if socket is None and 0 <= client < len(self._outputs):
            socket = self._outputs[client]
        if socket is None:
            if not self._outputs:
                return  # closed: what was under way goes nowhere
            _logger.warning("an output for API server %d of %d was dropped", client, len(self._outputs))
            return
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            if not self.lost.is_set():
                _logger.error("API server %d has not read %d messages: it counts as gone", client, MOST_UNSENT)
                self.lost.set()

    def send_death(self) -> None:
        """Tell all API servers that the engine is dead."""
        for client in range(len(self._outputs)):
            self.send(client, [messages.ENGINE_DEAD])

    async def close(self, linger_ms: int = LINGER_MS) -> None:
        """Close all sockets; what is unsent waits for `linger_ms` at most."""
        await cancelled(*self._tasks)
        self._tasks.clear()
        for each in (*self._inputs, self._coordinator_input, self._handshake):
            if each is not None:
                each.disable_monitor()
                each.close(0)
        for output in (*self._outputs, self._coordinator_output):
            if output is not None:
                output.close(linger_ms)
        self._inputs, self._outputs = [], []
        self._coordinator_input = self._coordinator_output = self._handshake = None

    def _socket(self, kind: int, linger_ms: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, self._most_bytes)
        socket.setsockopt(zmq.IDENTITY, identity_of(self.rank))
        socket.setsockopt(zmq.LINGER, linger_ms)
        socket.setsockopt(zmq.IPV6, 1)
        return socket

    def _output(self, address: str) -> "zmq.Socket[bytes]":
        socket = self._plain.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, MOST_UNSENT)
        socket.setsockopt(zmq.SNDBUF, BUFFER_BYTES)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.IPV6, 1)
        socket.connect(address)
        return socket

    def _watch(self, socket: zmq.asyncio.Socket) -> None:
        """Set `lost` when the connection of a socket ends, or when none begins within `GREETING_WITHIN_S`.

        One that ends before its peers have greeted each other is tried again: API servers may listen late.
        """
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)

        async def watch() -> None:
            has_greeted, loop = False, asyncio.get_running_loop()
            ends_s = loop.time() + GREETING_WITHIN_S
            while True:
                left_s = None if has_greeted else max(0.0, ends_s - loop.time())
                try:
                    frames = await asyncio.wait_for(monitor.recv_multipart(), left_s)
                except TimeoutError:
                    self.lost.set()
                    return
                if parse_monitor_message(frames)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    has_greeted = True
                elif has_greeted:
                    self.lost.set()

        self._tasks.append(asyncio.ensure_future(watch()))

    async def _receive(self, socket: zmq.asyncio.Socket, on_frames: OnFrames) -> None:
        receive: Callable[[], Awaitable[list[bytes]]] = socket.recv_multipart
        while True:
            on_frames(await receive())
