"""The engine process's end: receives requests from API server processes and sends tokens, one message per step."""

from collections.abc import Callable, Mapping
from http import HTTPStatus

from blis_sim.options import OptionError
from mockserve.api_servers.channel import (
    Abort,
    Broken,
    ChangeFaults,
    Fail,
    FaultSettingsChanged,
    FaultsResult,
    Finish,
    FromApiServer,
    FromEngines,
    RequestStateStats,
    State,
    Submit,
    Tokens,
    UsesBackend,
)
from mockserve.engines import RankEngine, driver_of
from mockserve.faults.engine import EngineFaults
from mockserve.in_flight_request import InFlightRequest, ParentRequest, new_parent
from mockserve.realtime.deliveries import WriteCoalescer
from mockserve.realtime.driver import EngineFailedError


class RemoteReply:
    """A reply that is written in another process."""

    __slots__ = ("_end", "_number", "finish_reason", "flight", "is_streamed")

    def __init__(self, end: "ApiServerConnection", number: int, finish_reason: str) -> None:
        self._end = end
        self._number = number
        self.finish_reason = finish_reason
        self.flight: InFlightRequest | None = None
        self.is_streamed = True  # the API server process measures replies that are not streamed

    def token(self, number: int) -> None:
        self._end.token(self._number, number)

    def tokens(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self.token(number)

    def finish(self, num_tokens: int) -> None:
        self._end.finish(self._number, num_tokens, self.flight)

    def abort(self, num_tokens: int) -> None:
        self.finish(num_tokens)

    def fail(self, message: str, status: int) -> None:
        self._end.fail(self._number, message, status)


class ApiServerConnection:
    """One API server process, as seen by the engine process."""

    def __init__(self, engines: "EngineSide", send: Callable[[FromEngines], None]) -> None:
        self._engines = engines
        self._send = send
        self._tokens: Tokens | None = None
        """The unsent message that further tokens of its step can join."""
        self._ids: dict[int, str] = {}
        """Engine request ids by the process's request numbers."""
        self._prompt: tuple[int, ParentRequest] = (-1, new_parent(1))

    def on_message(self, message: FromApiServer) -> None:
        """Handle messages for the engines; other messages are ignored."""
        if isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, Abort) and (request_id := self._ids.pop(message.number, None)) is not None:
            self._engines.driver.abort(request_id)

    def on_closed(self) -> None:
        """Abort the requests of the process after its end."""
        ids, self._ids = self._ids, {}
        for request_id in ids.values():
            self._engines.driver.abort(request_id)

    def send(self, message: FromEngines) -> None:
        """Send a message after the present tokens."""
        self._tokens = None
        self._send(message)

    def on_sent(self) -> None:
        """Begin a new message of tokens, since queued messages are being sent."""
        self._tokens = None

    def token(self, number: int, count: int) -> None:
        """Send that a request has `count` tokens."""
        due_s = self._engines.wire.due_s
        tokens = self._tokens
        if tokens is None or tokens.due_s != due_s:
            tokens = self._tokens = Tokens(due_s, [], [])
            self._send(tokens)
        tokens.numbers.append(number)
        tokens.counts.append(count)

    def finish(self, number: int, num_tokens: int, flight: InFlightRequest | None) -> None:
        """Send the end of a request."""
        assert flight is not None  # set before the first token
        self._ids.pop(number, None)
        stats = RequestStateStats._make(getattr(flight, name) for name in RequestStateStats._fields)
        self.send(Finish(self._engines.wire.due_s, number, num_tokens, stats))

    def fail(self, number: int, message: str, status: int) -> None:
        """Send the failure of a request."""
        self._ids.pop(number, None)
        self.send(Fail(number, message, status))

    def _submit(self, message: Submit) -> None:
        number = message.number
        reply = RemoteReply(self, number, message.finish_reason)
        if message.prompt_number != self._prompt[0]:
            self._prompt = (message.prompt_number, new_parent(message.num_choices))
        self._ids[number] = message.request.id
        try:
            reply.flight = self._engines.driver.submit(
                message.request, reply, message.arrived_at, self._prompt[1], message.rank
            )
        except EngineFailedError as error:
            self.fail(number, str(error), HTTPStatus.INTERNAL_SERVER_ERROR)
        except ValueError as error:
            self.fail(number, str(error), HTTPStatus.BAD_REQUEST)


class EngineSide:
    """The engines with their API server processes. `wire` must be that of the engines' drivers."""

    def __init__(
        self, engines: Mapping[int, RankEngine], wire: WriteCoalescer, faults: EngineFaults | None = None
    ) -> None:
        self.driver = driver_of(engines)
        self._faults = faults
        self.wire = wire
        self.ends: list[ApiServerConnection] = []
        self._reported: State | None = None
        self._backend: UsesBackend | None = None
        self.driver.on_failure = self._broken

    def add(self, send: Callable[[FromEngines], None]) -> ApiServerConnection:
        """Add an API server process with the function that sends messages to it."""
        end = ApiServerConnection(self, send)
        self.ends.append(end)
        return end

    @property
    def state(self) -> State:
        """Return the state of the engines."""
        driver = self.driver
        active = () if self._faults is None else tuple(self._faults.active)
        return State(driver.engine.stats, driver.num_unfinished_requests, driver.num_waiting_tokens, active)

    def send_state(self) -> None:
        """Send the state of the engines if it has changed since it was last sent."""
        state = self.state
        if state != self._reported:
            self._reported = state
            self.send_all(state)

    def send_initial_state(self, end: ApiServerConnection) -> None:
        """Send the shared state to a process that has begun to listen."""
        end.send(self.state)
        if self._backend is not None:
            end.send(self._backend)

    def use_backend(self, message: UsesBackend) -> None:
        """Set the structured-output backend of all processes to the first one that a process used."""
        if self._backend is None:
            self._backend = message
        self.send_all(self._backend)

    async def change_faults(self, end: ApiServerConnection, message: ChangeFaults) -> None:
        """Change faults of engines in this process and of replies in all processes, then reply."""
        assert self._faults is not None
        problem = ""
        try:
            await self._faults.change(message.settings, message.changes)
        except OptionError as error:
            problem = str(error)
        else:
            self.send_all(FaultSettingsChanged(message.settings))
            self.send_state()
        end.send(FaultsResult(message.query_id, problem))

    def send_all(self, message: FromEngines) -> None:
        """Send one message to every process."""
        for end in self.ends:
            end.send(message)

    def _broken(self, error: BaseException) -> None:
        self.send_all(Broken(str(error) or type(error).__name__))
