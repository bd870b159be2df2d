"""The recorder between a frontend and its engines: it passes every frame on, and notes what it has seen afterwards."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import zmq

from blis_sim.wings.engine_core import messages
from blis_sim.wings.engine_core.link import identity_of
from blis_sim.wings.engine_core.messages import MessageError

READ_AT_ONCE = 16
"""Messages that are passed on from one socket before the others get their turn."""
MOST_UNREAD = 20_000
"""Messages that wait to be read; later ones are passed on without being recorded."""
POLL_MS = 200


class Seen(NamedTuple):
    """A message that has passed: which rank's, when, and whether it went to the engine."""

    rank: int
    at_s: float
    to_engine: bool
    frames: Sequence[bytes]


class Pair(NamedTuple):
    """Two sockets that belong together. Frames go from one to the other with the name of the peer in front, or not."""

    engine_side: "zmq.Socket[bytes]"
    frontend_side: "zmq.Socket[bytes]"
    rank: int
    has_names: bool = False
    """Whether messages of the engine come with its name in front."""
    is_recorded: bool = False


class Tap:
    """Sockets in the place of a frontend, and their counterparts to the real one."""

    def __init__(self, host: str, port: int, frontend: str) -> None:
        """Listen for engines at `host` and `port`; `frontend` is the address of the frontend's handshake."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._host, self._frontend = host, frontend
        self._poller = zmq.Poller()
        self._pairs: dict[Any, tuple[Pair, bool]] = {}
        """By socket: its pair, and whether it is the one on the engine's side."""
        self._greeters: dict[bytes, zmq.Socket[bytes]] = {}
        self._names: dict[Any, bytes] = {}
        """Names of engines, by their greeter."""
        self.seen: deque[Seen] = deque()
        self.num_dropped = 0
        self.num_passed = 0
        self._door = self._new(zmq.ROUTER)
        self._door.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._door.bind(f"tcp://{host}:{port}")
        self._poller.register(self._door, zmq.POLLIN)

    def run(self, reads: Callable[[Seen], None], goes_on: Callable[[], bool]) -> None:
        """Pass messages on while `goes_on()`. Between them `reads` gets each one that has passed."""
        while goes_on():
            ready = self._poller.poll(0 if self.seen else POLL_MS)
            for socket, _ in ready:
                self._pass_on(socket)
            if not ready and self.seen:
                reads(self.seen.popleft())
        while self.seen:
            reads(self.seen.popleft())

    def close(self) -> None:
        """Close all sockets."""
        self._context.destroy(linger=1000)

    def _new(self, kind: int, name: bytes | None = None) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        for option in (zmq.RCVHWM, zmq.SNDHWM):
            socket.setsockopt(option, 0)
        if name is not None:
            socket.setsockopt(zmq.IDENTITY, name)
        if kind == zmq.XPUB:
            socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        socket.setsockopt(zmq.IPV6, 1)
        return socket

    def _pass_on(self, socket: Any) -> None:
        if socket is self._door:
            self._greeting()
            return
        if socket in self._names:
            self._welcome(socket)
            return
        pair, is_engine_side = self._pairs[socket]
        other = pair.frontend_side if is_engine_side else pair.engine_side
        for _ in range(READ_AT_ONCE):
            try:
                frames: list[bytes] = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            sent = frames
            if pair.has_names:
                sent = frames[1:] if is_engine_side else [identity_of(pair.rank), *frames]
            other.send_multipart(sent)
            self.num_passed += 1
            if pair.is_recorded:
                self._note(Seen(pair.rank, time.time(), not is_engine_side, sent[-len(frames) :]))

    def _note(self, seen: Seen) -> None:
        if len(self.seen) < MOST_UNREAD:
            self.seen.append(seen)
        else:
            self.num_dropped += 1

    def _greeting(self) -> None:
        """Pass a greeting of an engine on; the first one opens the way to the frontend."""
        name, *frames = self._door.recv_multipart()
        greeter = self._greeters.get(name)
        if greeter is None:
            greeter = self._new(zmq.DEALER, name)
            greeter.connect(self._frontend)
            self._greeters[name], self._names[greeter] = greeter, name
            self._poller.register(greeter, zmq.POLLIN)
        greeter.send_multipart(frames)

    def _welcome(self, greeter: Any) -> None:
        """Pass the frontend's answer on, with addresses of this process in the place of its own."""
        name, frames = self._names[greeter], greeter.recv_multipart()
        try:
            welcome = messages.read_welcome(frames[0])
        except MessageError:
            self._door.send_multipart([name, *frames])
            return
        rank = int.from_bytes(name, "little")
        found = welcome.addresses
        found.inputs = [self._requests(each, rank) for each in found.inputs]
        found.outputs = [self._outputs(each, rank, True) for each in found.outputs]
        if found.coordinator_input is not None and found.coordinator_output is not None:
            found.coordinator_input = self._waves(found.coordinator_input, rank)
            found.coordinator_output = self._outputs(found.coordinator_output, rank, False)
        self._door.send_multipart([name, messages.encode(welcome), *frames[1:]])

    def _requests(self, address: str, rank: int) -> str:
        engine_side = self._new(zmq.ROUTER)
        frontend_side = self._new(zmq.DEALER, identity_of(rank))
        return self._opened(Pair(engine_side, frontend_side, rank, has_names=True, is_recorded=True), address)

    def _outputs(self, address: str, rank: int, is_recorded: bool) -> str:
        pair = Pair(self._new(zmq.PULL), self._new(zmq.PUSH), rank, is_recorded=is_recorded)
        return self._opened(pair, address, has_answers=False)

    def _waves(self, address: str, rank: int) -> str:
        return self._opened(Pair(self._new(zmq.XPUB), self._new(zmq.XSUB, identity_of(rank)), rank), address)

    def _opened(self, pair: Pair, address: str, has_answers: bool = True) -> str:
        port = pair.engine_side.bind_to_random_port(f"tcp://{self._host}")
        pair.frontend_side.connect(address)
        self._pairs[pair.engine_side] = pair, True
        self._poller.register(pair.engine_side, zmq.POLLIN)
        if has_answers:
            self._pairs[pair.frontend_side] = pair, False
            self._poller.register(pair.frontend_side, zmq.POLLIN)
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"tcp://{host}:{port}"
