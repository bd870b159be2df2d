"""Injected faults: engines that hang, die, run out of KV cache or are slow, and faults of replies."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from multidict import istr

from blis_sim.engine.core import Engine
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.units import Micros
from blis_sim.options import OptionError
from mockserve.engines import RankEngine
from mockserve.options.faults import ENGINE_FAULTS, ERRORS, REPLY_FAULTS, FaultSettings, TimedFault

# Faults of replies: drawing a fault for each request, and shaping its reply.

HEADER = istr("X-Blis-Fault")
"""`kind`, or a status, with settings for this request after semicolons: `stall; stall_s=2; after_events=1`."""

STATUS_HEADER = istr("X-Return-Error")
"""A status alone, a header of another mock server."""


class FaultSource:
    """Draws faults by settings that may change at runtime. Equal seeds and requests give equal faults."""

    def __init__(self, settings: FaultSettings, seed: int = 0) -> None:
        self.settings = settings
        self._random = Random(f"faults {seed}")

    def draw(self, headers: Mapping[str, str], by_chance: bool) -> tuple[str, FaultSettings] | None:
        """Return the kind of fault for a request, with its settings. Raises OptionError for an invalid header.

        `by_chance` is False for requests that only get a fault requested by header.
        """
        requested = headers.get(HEADER) or headers.get(STATUS_HEADER)
        if requested is not None:
            return self.requested(requested)
        if not by_chance or not self.settings.rates:
            return None
        point = self._random.random()
        for kind, rate in self.settings.rates.items():
            point -= rate
            if point < 0:
                return kind, self.settings
        return None

    def requested(self, text: str) -> tuple[str, FaultSettings]:
        """Return the kind of fault in the words of a header, with its settings. Raises OptionError."""
        kind, *parts = (part.strip() for part in text.split(";"))
        kind = _BY_STATUS.get(kind, kind)
        if kind not in REPLY_FAULTS:
            raise OptionError(f"{HEADER} must be one of {', '.join(REPLY_FAULTS)} or a status of these, got {text!r}")
        changes: dict[str, str] = {}
        for part in filter(None, parts):
            name, _, value = part.partition("=")
            changes[name.strip()] = value.strip()
        return kind, self.settings.changed(changes)


_BY_STATUS = {str(fault.status): kind for kind, fault in reversed(list(ERRORS.items()))}


_END_OF_HEAD = b"\r\n\r\n"


@dataclass(slots=True)
class _PendingBytes:
    """Bytes to send in pieces, with a pause before each piece."""

    pause_s: float
    data: memoryview
    piece_bytes: int

    def take(self) -> memoryview:
        """Remove and return the next piece."""
        piece, self.data = self.data[: self.piece_bytes], self.data[self.piece_bytes :]
        return piece


class ShapedTransport(asyncio.Transport):
    """A transport that applies a fault to the bytes of one reply. `kind` is a key of `SHAPES`."""

    def __init__(self, inner: asyncio.Transport, kind: str, settings: FaultSettings) -> None:
        super().__init__()
        self._inner = inner
        self._kind = kind
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_PendingBytes] = deque()
        """Delayed bytes."""
        self._num_events = 0
        self._timer: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self._has_head = False

    # --- methods that a reply calls ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        rest = bytes(data)
        if not self._has_head:
            self._has_head = True
            head, found, rest = rest.partition(_END_OF_HEAD)
            self._send(0.0, head + found)
            if not rest:
                return
        settings = self._settings
        number, self._num_events = self._num_events, self._num_events + 1
        # A reply that is no stream counts as one event, which is faulty.
        is_the_one = number == (settings.after_events if self._is_stream(rest) else 0)
        if self._kind == "slow_first_token":
            self._send(settings.first_token_delay_s if number == 0 else 0.0, rest)
        elif self._kind == "trickle":
            self._send(settings.trickle_pause_s, rest, settings.trickle_bytes)
        elif self._kind == "stall":
            self._send(settings.stall_s if is_the_one else 0.0, rest)
        elif self._kind == "disconnect" and is_the_one:
            self.abort()
        elif self._kind == "malformed" and is_the_one:
            # The length is unchanged, so that the HTTP framing stays valid.
            self._send(0.0, rest.replace(b"{", b"<", 1))
        else:
            self._send(0.0, rest)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    async def drained(self) -> None:
        """Return when all written bytes have been sent, or the connection is closed."""
        await self._drained.wait()

    def _is_stream(self, data: bytes) -> bool:
        return self._num_events > 1 or b"data: " in data[:16] or b"event: " in data[:16]

    # --- delays ---

    def _send(self, pause_s: float, data: bytes, piece_bytes: int = 0) -> None:
        """Write bytes after a pause, at once or in pieces of `piece_bytes` with the pause before each."""
        if self._inner.is_closing() or not data:
            return  # a closed transport refuses to write
        if pause_s == 0 and not self._waiting:
            self._inner.write(data)
            return
        self._waiting.append(_PendingBytes(pause_s, memoryview(data), piece_bytes or len(data)))
        self._drained.clear()
        if self._timer is None:
            self._timer = self._loop.call_later(pause_s, self._pause_over)

    def _pause_over(self) -> None:
        self._timer = None
        waiting = self._waiting
        while waiting:
            if self._inner.is_closing():
                waiting.clear()
                break
            first = waiting[0]
            self._inner.write(first.take())
            if not first.data:
                waiting.popleft()
            if waiting and waiting[0].pause_s:
                self._timer = self._loop.call_later(waiting[0].pause_s, self._pause_over)
                return
        self._drained.set()

    def abort(self) -> None:
        self.stop()
        self._inner.abort()

    def stop(self) -> None:
        """Stop writing and drop the waiting frames."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self._drained.set()

    # --- methods delegated to the connection's transport ---

    def close(self) -> None:
        self.stop()
        self._inner.close()

    def is_closing(self) -> bool:
        return self._inner.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._inner.get_protocol()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._inner.set_protocol(protocol)

    def is_reading(self) -> bool:
        return self._inner.is_reading()

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._inner.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._inner.set_write_buffer_limits(high, low)


# Engine faults: an engine hangs, dies, runs out of KV cache or is slow, for a limited time or permanently.

_logger = logging.getLogger(__name__)


class EngineDeathError(RuntimeError):
    """Raised by an injected death of the engine."""


class FaultControl(Protocol):
    """Shows and changes faults of replies, and of engines in this or another process."""

    @property
    def active(self) -> Sequence[str]:
        """Return the engine faults in force."""
        ...

    def plan(self, faults: Sequence[TimedFault]) -> None:
        """Schedule the start of each fault. Raises OptionError for a fault that the engines do not support."""
        ...

    async def change(self, settings: FaultSettings, changes: "Changes") -> None:
        """Change fault settings, and start and end engine faults. Raises OptionError without any change."""
        ...

    def close(self) -> None:
        """Cancel all planned starts and ends."""
        ...


Changes = Mapping[str, float | bool | None]
"""Engine faults to start, with their seconds or None for no end, or to end, with False."""


class EngineFaults:
    """Starts and ends faults of the engines, or of one of them. Use it from one event loop only."""

    def __init__(self, engines: Mapping[int, RankEngine], source: FaultSource) -> None:
        self._engines = engines
        self._source = source
        self._active: dict[str, None] = {}
        self._starts: list[asyncio.TimerHandle] = []
        """Timers of faults that are planned."""
        self._ends: dict[str, asyncio.TimerHandle] = {}
        """Timers that end the active faults, by kind."""

    @property
    def active(self) -> Sequence[str]:
        """Return the engine faults in force."""
        return list(self._active)

    def plan(self, faults: Sequence[TimedFault]) -> None:
        """Schedule the start of each fault. Raises OptionError for a fault that the engines do not support."""
        loop = asyncio.get_running_loop()
        self.check(self._source.settings.rank, [fault.kind for fault in faults])
        for fault in faults:
            self._starts.append(loop.call_later(fault.after_s, self._start_planned, fault))

    def check(self, rank: int, kinds: Collection[str]) -> None:
        """Raise OptionError unless the engines of a rank support these kinds of faults; rank -1 means all."""
        for kind in kinds:
            _check_engine_fault(kind)
        configs = [each.driver.engine.config for each in self._of_rank(rank)] if kinds else []
        for config in configs:
            if "slow" in kinds and config.timing is not None:
                raise OptionError("an engine whose times are set cannot be slow: it takes no steps")
            if "kv_exhaustion" in kinds and config.engine != "vllm":
                raise OptionError(f"kv_exhaustion needs vLLM's scheduling, got {config.engine}")

    async def change(self, settings: FaultSettings, changes: Changes) -> None:
        """Change fault settings, and start and end engine faults. Raises OptionError without any change."""
        self.check(settings.rank, changes)
        self._source.settings = settings
        for kind, for_s in changes.items():
            if for_s is False:
                self.end(kind)
            else:
                self.start(kind, for_s)

    def start(self, kind: str, for_s: float | None = None) -> None:
        """Start a fault for `for_s` real seconds, or until `end`. Raises OptionError as `check` does."""
        self.check(self._source.settings.rank, [kind])
        if self._has_died:
            return
        _STARTS[kind](self)
        self._active[kind] = None
        self._cancel_end(kind)
        if for_s is not None:
            self._ends[kind] = asyncio.get_running_loop().call_later(for_s, self.end, kind)

    def end(self, kind: str) -> None:
        """End a fault. An engine that has died stays dead. Raises OptionError for an unknown kind."""
        _check_engine_fault(kind)
        self._cancel_end(kind)
        if kind in self._active and kind != "death" and not self._has_died:
            del self._active[kind]
            _ENDS[kind](self)

    def close(self) -> None:
        """Cancel all planned starts and ends."""
        for timer in (*self._starts, *self._ends.values()):
            timer.cancel()
        self._starts.clear()
        self._ends.clear()

    def _cancel_end(self, kind: str) -> None:
        timer = self._ends.pop(kind, None)
        if timer is not None:
            timer.cancel()

    def _start_planned(self, fault: TimedFault) -> None:
        try:
            self.start(fault.kind, fault.for_s)
        except OptionError as error:  # the planned rank has been removed
            _logger.warning("the engine fault %s does not happen: %s", fault.kind, error)

    @property
    def _has_died(self) -> bool:
        dead = [engine.driver.failure is not None for engine in self._engines.values()]
        return all(dead) if self._fail_alone else any(dead)

    @property
    def _fail_alone(self) -> bool:
        return all(engine.fails_alone for engine in self._engines.values())

    @property
    def _target_engines(self) -> Collection[RankEngine]:
        """The engines of the rank in the settings. Raises OptionError for an unknown rank."""
        return self._of_rank(self._source.settings.rank)

    def _of_rank(self, rank: int) -> Collection[RankEngine]:
        if rank < 0:
            return self._engines.values()
        if rank not in self._engines:
            highest = max(self._engines, default=-1)
            raise OptionError(
                f"rank {rank} is gone" if rank < highest else f"rank must be at most {highest}, got {rank}"
            )
        return [self._engines[rank]]

    def _hang(self) -> None:
        for each in self._target_engines:
            each.driver.call_engine(lambda engine, at: engine.hold(PauseState.EVERYTHING, at))

    def _resume(self) -> None:
        for each in self._engines.values():
            each.driver.call_engine(lambda engine, at: engine.hold(PauseState.NONE, at))

    def _die(self) -> None:
        for each in list(self._target_engines if self._fail_alone else self._engines.values()):
            each.driver.fail(EngineDeathError("the engine died on purpose"))

    def _exhaust(self) -> None:
        fraction = self._source.settings.kv_fraction

        def withhold(engine: Engine, at: Micros) -> None:
            free = engine.kv.num_blocks - engine.kv.num_used_blocks
            engine.shrink_cache(int(free * fraction), at)

        for each in self._target_engines:
            each.driver.call_engine(withhold)

    def _replenish(self) -> None:
        for each in self._engines.values():
            each.driver.call_engine(lambda engine, at: engine.shrink_cache(0, at))

    def _slow_down(self) -> None:
        for each in self._target_engines:
            each.latency.factor = self._source.settings.slow_factor

    def _speed_up(self) -> None:
        for each in self._engines.values():
            each.latency.factor = 1.0


_STARTS: Mapping[str, Callable[[EngineFaults], None]] = {
    "hang": EngineFaults._hang,
    "death": EngineFaults._die,
    "kv_exhaustion": EngineFaults._exhaust,
    "slow": EngineFaults._slow_down,
}
_ENDS: Mapping[str, Callable[[EngineFaults], None]] = {
    "hang": EngineFaults._resume,
    "kv_exhaustion": EngineFaults._replenish,
    "slow": EngineFaults._speed_up,
}


def _check_engine_fault(kind: str) -> None:
    if kind not in ENGINE_FAULTS:
        raise OptionError(f"an engine fault must be one of {', '.join(ENGINE_FAULTS)}, got {kind!r}")
