"""Calls between the engine process and the API server processes, over a socket."""

import asyncio
import itertools
import pickle
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from blis_sim.engine.request import Request
from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros
from blis_sim.options import BlisError
from mockserve.faults import Changes
from mockserve.options.faults import FaultSettings
from mockserve.realtime.driver import ignore

LENGTH_BYTES = 4
P = ParamSpec("P")
T = TypeVar("T")
_Message: TypeAlias = tuple[int | None, str, tuple[Any, ...]]
"""The number of a call with an answer, the name of a method, and its arguments. An answer has no name."""


class Channel(asyncio.Protocol):
    """One end of a connection between two processes, which call methods of each other's `receiver` in order.

    Calls are dropped while there is no receiver. `ended` is called when the connection is lost. Only processes of this
    server may have access to the socket, because received bytes are unpickled.
    """

    def __init__(self, receiver: object, ended: Callable[[], None]) -> None:
        self.receiver = receiver
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self.waiting: list[_Message] = []
        """Messages that are sent at the end of this turn of the loop."""
        self._received = bytearray()
        self._gone = asyncio.Event()
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answers: set[asyncio.Task[None]] = set()

    def call(self, method: Callable[Concatenate[Any, P], object], *arguments: P.args, **_: P.kwargs) -> None:
        """Queue a call, sent together with other calls of this turn. Does nothing if the connection is lost."""
        self._send_soon((None, method.__name__, arguments))

    async def ask(self, method: Callable[Concatenate[Any, P], Awaitable[T]], *arguments: P.args, **_: P.kwargs) -> T:
        """Return the result of a call, or raise its BlisError. Raises ConnectionResetError without a connection."""
        if self._gone.is_set():
            raise ConnectionResetError
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send_soon((number, method.__name__, arguments))
        try:
            found: T = await answer
            return found
        finally:
            del self._asked[number]

    def close(self) -> None:
        """Send queued calls and close without a callback."""
        self._ended = ignore
        if self.waiting:
            self._send()
        if self._transport is not None:
            self._transport.close()

    async def close_when_sent(self) -> None:
        """Close, and return after all calls have been sent."""
        self.close()
        await self._gone.wait()

    def _send_soon(self, message: _Message) -> None:
        if not self.waiting:
            asyncio.get_running_loop().call_soon(self._send)
        self.waiting.append(message)

    def _send(self) -> None:
        messages, self.waiting = self.waiting, []
        if messages and self._transport is not None and not self._transport.is_closing():
            data = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
            self._transport.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)

    def _take(self, number: int | None, name: str, arguments: tuple[Any, ...]) -> None:
        if not name:
            answer = None if number is None else self._asked.get(number)
            if answer is not None and not answer.done():
                result, error = arguments
                answer.set_result(result) if error is None else answer.set_exception(error)
        elif self.receiver is not None:
            found = getattr(self.receiver, name)(*arguments)
            if number is not None:
                task = asyncio.create_task(self._answer(number, found))
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)

    async def _answer(self, number: int, result: Awaitable[Any]) -> None:
        try:
            self._send_soon((number, "", (await result, None)))
        except BlisError as error:
            self._send_soon((number, "", (None, error)))

    # --- the interface of a protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError())
        for task in self._answers:
            task.cancel()
        self._ended()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start = 0
        while len(received) - start >= LENGTH_BYTES:
            begin = start + LENGTH_BYTES
            end = begin + int.from_bytes(received[start:begin], "little")
            if len(received) < end:
                break
            start = end
            for message in pickle.loads(received[begin:end]):
                self._take(*message)
        del received[:start]


async def open_channel(end: socket.socket, receiver: object, ended: Callable[[], None]) -> Channel:
    """Open a channel over one end of a socket pair."""
    _, channel = await asyncio.get_running_loop().create_unix_connection(lambda: Channel(receiver, ended), sock=end)
    return channel


REQUEST_STATS = (
    *("arrived_at", "queued_at", "first_scheduled_at", "first_token_at", "last_token_at", "num_preemptions"),
    *("num_cached_tokens", "num_external_tokens", "first_token_latency_us", "e2e_latency_us"),
)
"""Fields of `InFlightRequest` that an API server process gets of a complete request."""


class State(NamedTuple):
    """The state of the engines."""

    stats: EngineStats
    num_unfinished_requests: int
    num_waiting_tokens: int
    engine_faults: tuple[str, ...] = ()


class EngineCalls(Protocol):
    """The calls of an API server process to the engine process, which calls `RemoteEngines` there."""

    def listens(self, host: str, port: int) -> None:
        """The process accepts connections on this port."""

    def refused(self, message: str) -> None:
        """The process cannot serve with its settings."""

    def submit(
        self,
        number: int,
        request: Request,
        arrived_at: Micros,
        finish_reason: str,
        prompt_number: int,
        num_choices: int,
        rank: int | None,
    ) -> None:
        """Submit a request. The `num_choices` choices of one prompt have equal `prompt_number`."""

    def abort(self, number: int) -> None:
        """Abort a request whose client has disconnected."""

    async def metrics_page(self, names: tuple[str, ...], accept: str, is_history: bool) -> bytes:
        """Return the metrics page, or only the named samples, in the format selected by an `Accept` header.

        With `is_history` it is the metrics over time instead, as JSON.
        """
        ...

    def report_death(self) -> None:
        """A client has received the status that reports the engine's failure."""

    def use_backend(self, name: str) -> None:
        """The process has chosen the structured-output backend."""

    async def change_faults(self, settings: FaultSettings, changes: Changes) -> None:
        """Change the fault settings, and start and end engine faults. Raises OptionError without any change."""

    def stops(self, num_open: int) -> None:
        """The process has stopped accepting requests; `num_open` replies are open."""
