"""A frontend for tests: it sends recorded bytes of vLLM's own, and keeps what an engine answers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import zmq
import zmq.asyncio

from blis_sim.wings.engine_core import messages
from blis_sim.wings.engine_core.messages import EngineOutput, EngineOutputs, EngineRequest

PATIENCE_S = 30.0


@cache
def recorded() -> Mapping[str, bytes]:
    """Messages between a genuine frontend and a genuine engine of vLLM 0.33, by name."""
    lines = Path(__file__).with_name("recorded.txt").read_text().splitlines()
    return {name: bytes.fromhex(content) for name, content in map(str.split, lines)}


class Frontend:
    """The sockets of a frontend with one API server."""

    def __init__(self, port: int = 0) -> None:
        """Wait for an engine at a port; 0 takes a free one."""
        self._context = zmq.asyncio.Context()
        self._door = self._context.socket(zmq.ROUTER)
        self._input = self._context.socket(zmq.ROUTER)
        self._output = self._context.socket(zmq.PULL)
        self.port = port or self._door.bind_to_random_port("tcp://127.0.0.1")
        if port:
            self._door.bind(f"tcp://127.0.0.1:{port}")
        self._addresses = [
            f"tcp://127.0.0.1:{each.bind_to_random_port('tcp://127.0.0.1')}" for each in (self._input, self._output)
        ]
        self.greetings: list[bytes] = []
        self.ready_response = b""
        self.frames: list[list[bytes]] = []
        """All messages of the engine after the handshake."""
        self._name = b""
        self._reader: asyncio.Task[None] | None = None

    async def meet(self) -> None:
        """Greet an engine as vLLM's frontend does, with the recorded answer but for the addresses."""
        self._name, hello = await _soon(self._door.recv_multipart())
        welcome = messages.read_welcome(recorded()["welcome"])
        welcome.addresses.inputs, welcome.addresses.outputs = self._addresses[:1], self._addresses[1:]
        await self._door.send_multipart([self._name, messages.encode(welcome)])
        _, ready = await _soon(self._door.recv_multipart())
        self.greetings = [hello, ready]
        _, self.ready_response = await _soon(self._input.recv_multipart())
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while True:
            self.frames.append(await self._output.recv_multipart())

    async def send(self, *frames: bytes) -> None:
        """Send a message to the engine."""
        await self._input.send_multipart([self._name, *frames])

    async def complete(self, *requests: EngineRequest) -> None:
        """Send requests."""
        for each in requests:
            await self.send(messages.ADD, messages.encode(each))

    @property
    def outputs(self) -> list[EngineOutputs]:
        """All outputs of the engine so far."""
        return [messages.read_outputs(frames[0]) for frames in self.frames if frames[0] != messages.ENGINE_DEAD]

    def of(self, request_id: str) -> list[EngineOutput]:
        """The outputs of a request so far."""
        return [each for outputs in self.outputs for each in outputs.outputs if each.request_id == request_id]

    async def until_ended(self, request_id: str) -> None:
        """Return when a request has its last output."""
        await self.until(lambda: self.has_ended(request_id))

    def has_ended(self, request_id: str) -> bool:
        """Whether a request has its last output."""
        return any(each.finish_reason is not None for each in self.of(request_id))

    async def until(self, condition: Callable[[], object]) -> None:
        """Return when a condition holds. Fails the test if it does not within `PATIENCE_S`."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110  (a condition may be about anything)
                await asyncio.sleep(0.005)

    async def call(self, method: str, *arguments: object, number: int = 7) -> messages.UtilityOutput:
        """Call a method of the engine, and return its answer."""
        await self.send(messages.UTILITY, messages.encode((0, number, method, arguments)))
        found: list[messages.UtilityOutput] = []

        def is_answered() -> bool:
            found[:] = [
                each.utility_output
                for each in self.outputs
                if each.utility_output is not None and each.utility_output.call_id == number
            ]
            return bool(found)

        await self.until(is_answered)
        return found[-1]

    async def close(self) -> None:
        """Go away."""
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader
        self._context.destroy(linger=0)


def request(name: str, prompt: list[int], max_tokens: int = 5, **sampling: object) -> EngineRequest:
    """Return a request as a frontend sends it."""
    params = {"max_tokens": max_tokens, "ignore_eos": True, **sampling}
    return EngineRequest(name, prompt, None, params, None, 0.0, None, None, None)


async def _soon(received: Awaitable[list[bytes]]) -> list[bytes]:
    return await asyncio.wait_for(received, PATIENCE_S)
