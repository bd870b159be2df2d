"""The bytes between a frontend and its engines: passed on as they come, and handed over to be read afterwards.

Facts: the frames of ZMTP 3 (rfc.zeromq.org/spec/23). The peers greet each other through the tap, which changes one
message: the answer to HELLO, whose addresses become its own.
"""

import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import Any, NamedTuple

from blis_sim.wings.engine_core import messages
from blis_sim.wings.engine_core.messages import COORDINATOR, MessageError
from blis_sim.wings.engine_core.options import tcp_address

GREETING_BYTES = 64
MOST_HANDSHAKE_BYTES = 1 << 20
"""Bytes of a frame of the handshake, which is read whole before it is passed on."""
MORE, LONG, COMMAND = 1, 2, 4
"""Flags of a frame."""
SHORT_BYTES = 255
AT_ONCE_BYTES = 1 << 18
POLL_S = 0.1
IDENTITY = b"\x08Identity\x00\x00\x00\x02"


class Piece(NamedTuple):
    """Bytes that have passed: of which stream and rank, whether to the engine, and when. No bytes are its end."""

    stream: int
    rank: int
    to_engine: bool
    at_s: float
    data: bytes


class Splitter:
    """Splits a stream of ZMTP into frames of at most `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._unread = bytearray()
        self._greeting_left = GREETING_BYTES

    def frames(self, data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """Take bytes, and yield each frame that is complete: its bytes, its flags and its content.

        A greeting counts as commands, and comes in pieces: a peer waits for each. Raises MessageError.
        """
        unread = self._unread
        unread += data
        if self._greeting_left and unread:
            greeting = bytes(unread[: self._greeting_left])
            self._greeting_left -= len(greeting)
            del unread[: len(greeting)]
            yield greeting, COMMAND, b""
        while len(unread) > 1:
            head = 9 if unread[0] & LONG else 2
            end = head + int.from_bytes(unread[1:head])
            if len(unread) >= head and end > self._most_bytes:
                raise MessageError(f"a frame has {end} bytes")
            if len(unread) < head or len(unread) < end:
                return
            frame = bytes(unread[:end])
            del unread[:end]
            yield frame, frame[0], frame[head:]


def framed(flags: int, content: bytes) -> bytes:
    """Return a frame."""
    if len(content) > SHORT_BYTES:
        return bytes((flags | LONG,)) + len(content).to_bytes(8) + content
    return bytes((flags & ~LONG, len(content))) + content


class Place(NamedTuple):
    """An address of the frontend that engines connect to, and the rank of the engine that has it from its handshake."""

    address: str
    rank: int = COORDINATOR
    is_recorded: bool = False
    is_door: bool = False


@dataclass(slots=True, eq=False)
class Way:
    """One direction of a connection."""

    source: socket.socket
    target: socket.socket
    rank: int
    to_engine: bool
    stream: int
    """The number of a stream that is recorded; 0 for another one."""
    change: "Callable[[Way, bytes], bytes] | None" = None
    unsent: bytes = b""
    is_ending: bool = False
    back: "Way" = field(init=False)
    splitter: Splitter = field(default_factory=partial(Splitter, MOST_HANDSHAKE_BYTES))


class Tap:
    """Listens in the place of a frontend, and passes the bytes of each connection on."""

    def __init__(self, host: str, port: int, frontend: str, note: Callable[[Piece], None]) -> None:
        """Listen for engines; `frontend` is the address of the frontend's handshake. Raises OSError.

        `note` gets what has passed, but for the handshake and the coordinator's messages.
        """
        self._host, self._note = host, note
        self._selector = DefaultSelector()
        self._listeners: dict[int, list[socket.socket]] = {}
        """By rank: the sockets in the place of the addresses that its engine would connect to."""
        self._coordinators: dict[tuple[str | None, str | None], tuple[str, str]] = {}
        """The addresses of the coordinator, and those in their place."""
        self._streams = count(1)
        self._received = memoryview(bytearray(AT_ONCE_BYTES))
        self.num_connections = 0
        self._waiting: list[tuple[socket.socket, Place]] = []
        """Engines that have connected, while nothing listens in the place that they connect to."""
        self._found: dict[str, list[Any]] = {}
        """By address with a name: what it stands for, None while a thread looks for it."""
        self._listen(port, Place(frontend, is_door=True))

    def run(self, goes_on: Callable[[], bool], between: Callable[[], None] = lambda: None) -> None:
        """Pass bytes on while `goes_on()`; `between` is called after those that are there, each `POLL_S` at least."""
        due_s = 0.0
        while goes_on():
            for key, events in self._selector.select(POLL_S):
                key.data(events)
            between()
            if self._waiting and (now_s := time.monotonic()) >= due_s:
                due_s, waiting, self._waiting = now_s + POLL_S, self._waiting, []
                for engine, place in waiting:
                    self._connect(engine, place)

    def close(self) -> None:
        """Close all sockets."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # a socket
        for engine, _ in self._waiting:
            engine.close()
        self._selector.close()

    def _listen(self, port: int, place: Place) -> int:
        """Listen for connections to a place of the frontend. Returns the port."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server((self._host, port), family=family, backlog=128)
        listener.setblocking(False)
        if not place.is_door:
            self._listeners.setdefault(place.rank, []).append(listener)

        def accept(_events: int) -> None:
            with suppress(OSError):
                self._connect(listener.accept()[0], place)

        self._selector.register(listener, EVENT_READ, accept)
        number: int = listener.getsockname()[1]
        return number

    def _connect(self, engine: socket.socket, place: Place) -> None:
        """Connect to the frontend for an engine, which waits as long as there is none: it would see its end else."""
        engine.setblocking(False)
        if not _is_open(engine):
            engine.close()
            return
        try:
            frontend = _connecting(self._resolved(place.address))
        except OSError:
            self._waiting.append((engine, place))
            return
        self._selector.register(frontend, EVENT_WRITE, partial(self._opened, engine, frontend, place))

    def _resolved(self, address: str) -> tuple[Any, ...]:
        """Return what `getaddrinfo` knows of an address. Raises OSError until a thread has found a name, for others."""
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        look_up = partial(socket.getaddrinfo, host.strip("[]"), port, type=socket.SOCK_STREAM)
        with suppress(socket.gaierror):
            return look_up(flags=socket.AI_NUMERICHOST)[0]
        found = self._found.setdefault(address, [])
        if not found:
            found.append(None)

            def find() -> None:
                try:
                    found[0] = look_up()[0]
                except OSError:
                    found.clear()  # tried again

            threading.Thread(target=find, daemon=True).start()
        if found[:1] == [None] or not found:
            raise OSError(f"{host} is looked up")
        known: tuple[Any, ...] = found[0]
        return known

    def _opened(self, engine: socket.socket, frontend: socket.socket, place: Place, _events: int) -> None:
        """Pass on what comes, now that there is a connection to the frontend, or that none could be made."""
        self._selector.unregister(frontend)
        if frontend.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            frontend.close()
            self._found.pop(place.address, None)  # a name may stand for another address later
            self._waiting.append((engine, place))
            return
        self.num_connections += 1
        numbers = [next(self._streams) if place.is_recorded else 0 for _ in range(2)]
        up = Way(engine, frontend, place.rank, False, numbers[0])
        up.back = down = Way(frontend, engine, place.rank, True, numbers[1])
        down.back = up
        if place.is_door:
            up.change, down.change = _name, self._welcome
        for way in (up, down):
            way.source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(way.source, EVENT_READ, partial(self._pass_on, way))

    def _pass_on(self, way: Way, events: int) -> None:
        if way.source.fileno() < 0:
            return
        if events & EVENT_WRITE and way.back.unsent:
            self._send(way.back, b"")
        if not events & EVENT_READ or way.source.fileno() < 0:
            return
        data = sent = b""
        try:
            data = sent = bytes(self._received[: way.source.recv_into(self._received)])
            if way.change is not None:
                sent = way.change(way, data)
        except BlockingIOError:
            return
        except (OSError, MessageError):
            data = b""
        at_s = time.time()
        if not data:
            way.is_ending = True
            self._watch(way)
            return
        if way.stream:
            self._note(Piece(way.stream, way.rank, way.to_engine, at_s, data))
        self._send(way, sent)

    def _send(self, way: Way, data: bytes) -> None:
        """Send as much as the receiver takes; the rest waits, and with it the sender."""
        had_unsent, data = bool(way.unsent), way.unsent + data if way.unsent else data
        try:
            way.unsent = data[way.target.send(data) :] if data else b""
        except BlockingIOError:
            way.unsent = data
        except OSError:
            way.unsent, way.is_ending = b"", True
        if way.is_ending or had_unsent != bool(way.unsent):
            self._watch(way)

    def _watch(self, way: Way) -> None:
        """Wait for what both directions of a connection need next; close it when its end has been passed on."""
        is_over = way.is_ending and not way.unsent
        for each in (way, way.back):
            with suppress(KeyError, ValueError):
                self._selector.unregister(each.source)
            events = (0 if each.unsent or each.is_ending else EVENT_READ) | (EVENT_WRITE if each.back.unsent else 0)
            if is_over:
                each.source.close()
                if each.stream:
                    self._note(Piece(each.stream, each.rank, each.to_engine, time.time(), b""))
            elif events:
                self._selector.register(each.source, events, partial(self._pass_on, each))
        if is_over:
            del way.back.back, way.back  # no collection of garbage runs, which would free a cycle

    def _welcome(self, way: Way, data: bytes) -> bytes:
        """Return the bytes of the frontend's handshake, with addresses of the tap in the answer to HELLO."""
        return b"".join(
            frame if flags & COMMAND else framed(flags, self._answer(content, way.back))
            for frame, flags, content in way.splitter.frames(data)
        )

    def _answer(self, content: bytes, engine: Way) -> bytes:
        try:
            welcome = messages.read_welcome(content)
        except MessageError:
            return content  # of another release: the engine says so
        self._stop_listening(engine.rank)  # for an engine that has started again
        host = engine.source.getsockname()[0]  # by which the engine finds the tap

        def instead_of(address: str, rank: int = engine.rank) -> str:
            return tcp_address(host, self._listen(0, Place(address, rank, is_recorded=rank >= 0)))

        found = welcome.addresses
        found.inputs, found.outputs = [*map(instead_of, found.inputs)], [*map(instead_of, found.outputs)]
        coordinator = found.coordinator_input, found.coordinator_output
        if coordinator[0] is not None and coordinator[1] is not None:
            if coordinator not in self._coordinators:  # one for all ranks: the frontend compares what they were told
                self._stop_listening(COORDINATOR)
                pair = (instead_of(coordinator[0], COORDINATOR), instead_of(coordinator[1], COORDINATOR))
                self._coordinators = {coordinator: pair}
            found.coordinator_input, found.coordinator_output = self._coordinators[coordinator]
        return messages.encode(welcome)

    def _stop_listening(self, rank: int) -> None:
        for listener in self._listeners.pop(rank, ()):
            self._selector.unregister(listener)
            listener.close()


def _name(way: Way, data: bytes) -> bytes:
    """Note the rank that an engine names itself by; the bytes stay as they are."""
    if way.rank < 0:
        for _, flags, content in way.splitter.frames(data):
            if flags & COMMAND and IDENTITY in content:
                way.rank = int.from_bytes(content.partition(IDENTITY)[2][:2], "little")
    return data


def _is_open(connection: socket.socket) -> bool:
    """Whether a peer has not ended a connection, also where bytes before its end are not read."""
    if sys.platform != "linux":
        with suppress(BlockingIOError):
            return connection.recv(1, socket.MSG_PEEK) != b""
        return True
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return not poll.poll(0)


def _connecting(resolved: tuple[Any, ...]) -> socket.socket:
    """Return a socket that connects to what `getaddrinfo` has found. Raises OSError."""
    family, kind, protocol, _, target = resolved
    found = socket.socket(family, kind, protocol)
    found.setblocking(False)
    with suppress(BlockingIOError):
        found.connect(target)
    return found
