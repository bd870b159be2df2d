"""KV blocks in CPU memory and on devices behind it: settings, transfer times, queues of devices, and counters."""

import heapq
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil

from blis_sim.engine.draws import standard_normal
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros

# The settings of CPU memory behind the KV cache, and the time of a transfer from there.

LONGEST_TRANSFER_US: Micros = 3_600_000_000
"""Upper limit of the time to move a block: longer times are mistakes."""


@dataclass(frozen=True, slots=True)
class OffloadConfig:
    """CPU memory to which vLLM copies KV blocks. Raises EngineError for a value out of bounds."""

    num_blocks: int
    block_us: float
    """The time to bring one block to the GPU or to CPU memory."""
    block_bytes: float = 0.0
    """Bytes of a block on each GPU."""
    num_gpus: int = 1
    stored_bytes: float = 0.0
    """Bytes of a block in CPU memory and on each device, the parts of all GPUs together."""
    devices: "tuple[Device, ...]" = ()
    """Devices behind CPU memory, to all of which it is copied."""
    seed: int = 42
    """Seed of the deviations of device times."""

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise EngineError(f"num_blocks must be at least 1, got {self.num_blocks}")
        if not 0 <= self.block_us <= LONGEST_TRANSFER_US:
            raise EngineError(f"block_us must be at least 0 and at most {LONGEST_TRANSFER_US}, got {self.block_us}")


@dataclass(frozen=True, slots=True)
class CpuTierConfig:
    """CPU memory behind the KV cache, for `num_blocks` blocks. Raises EngineError for a value out of bounds."""

    num_blocks: int
    policy: str = "mirror"
    """The policy of moving blocks, a key of `blis_sim.engine.kv_cache.blis_cache.OFFLOAD_POLICIES`."""
    offload_threshold: float = 0.9
    """Share of the GPU's blocks in use above which free ones go there. The policy "threshold" only."""
    bandwidth_tokens_per_us: float = 100.0
    base_latency_us: Micros = 0

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise EngineError(f"num_blocks must be at least 1, got {self.num_blocks}")
        if self.base_latency_us < 0:
            raise EngineError(f"base_latency_us must be at least 0, got {self.base_latency_us}")
        if not self.bandwidth_tokens_per_us > 0:
            raise EngineError(f"bandwidth_tokens_per_us must be above 0, got {self.bandwidth_tokens_per_us}")
        if not 0 <= self.offload_threshold <= 1:
            raise EngineError(f"offload_threshold must be at least 0 and at most 1, got {self.offload_threshold}")

    def transfer_us(self, block_size_tokens: int) -> Micros:
        """Return the time to bring back one block. Raises EngineError for more than an hour."""
        time_us = self.base_latency_us + block_size_tokens / self.bandwidth_tokens_per_us
        if time_us > LONGEST_TRANSFER_US:
            raise EngineError(
                f"bringing back a block of {block_size_tokens} tokens would take {time_us:g} us; it must take "
                f"at most {LONGEST_TRANSFER_US} us (--kv-transfer-bandwidth, --kv-transfer-base-latency)"
            )
        return self.base_latency_us + ceil(block_size_tokens / self.bandwidth_tokens_per_us)


# Counters of KV blocks on their way to and from CPU memory, as vLLM's OffloadingConnector counts.

TRANSFER_BYTES = (1e6, 5e6, 10e6, 20e6, 40e6, 60e6, 80e6, 100e6, 150e6, 200e6)
LOOKUP_S = (0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
DEFERRED_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
PROMOTION_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ALLOCATED_CHUNKS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)


@dataclass(slots=True)
class Observations:
    """Counts of values by bucket. `bounds` ascend, and the last count is of values above all of them."""

    bounds: Sequence[float]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@dataclass(slots=True)
class TransferCounters:
    """Transfers in one direction. Each GPU of an instance moves its own part of every block."""

    num_bytes: float = 0.0
    seconds: float = 0.0
    sizes: Observations = field(default_factory=lambda: Observations(TRANSFER_BYTES))

    def add(self, num_bytes: float, seconds: float, num_gpus: int) -> None:
        """Count a transfer of so many bytes by each GPU."""
        self.num_bytes += num_bytes * num_gpus
        self.seconds += seconds * num_gpus
        self.sizes.observe(num_bytes, num_gpus)


@dataclass(slots=True)
class JobCounters:
    """Reads from a device, or writes to it: those that ended, and those under way."""

    num_bytes: float = 0.0
    seconds: float = 0.0
    """Time that readers or writers have spent on them."""
    num_under_way: int = 0
    num_blocks_under_way: int = 0


@dataclass(slots=True)
class TierCounters:
    """Look-ups in CPU memory or on a device, with the jobs of a device, as vLLM's TieringMetricsTracker counts.

    A request counts each block once per tier, with the first answer, and none after its first step.
    """

    num_queries: int = 0
    num_hits: int = 0
    answered_s: Observations = field(default_factory=lambda: Observations(DEFERRED_S))
    """Time to an answer that was not there at once."""
    reads: JobCounters = field(default_factory=JobCounters)
    writes: JobCounters = field(default_factory=JobCounters)
    promoted_s: Observations = field(default_factory=lambda: Observations(PROMOTION_S))
    """Time of each read, its wait for a reader and for the scheduler included."""


@dataclass(slots=True)
class OffloadCounters:
    """All counters of one engine."""

    loads: TransferCounters = field(default_factory=TransferCounters)
    stores: TransferCounters = field(default_factory=TransferCounters)
    lookup_s: Observations = field(default_factory=lambda: Observations(LOOKUP_S))
    """Time of each look-up, which takes none in simulated time."""
    deferred_s: Observations = field(default_factory=lambda: Observations(DEFERRED_S))
    """Time from the first look-up of a request that found blocks still on their way to the one that did not."""
    allocated_chunks: Observations = field(default_factory=lambda: Observations(ALLOCATED_CHUNKS))
    num_allocation_failures: int = 0
    num_loaded_tokens: int = 0
    """Prompt tokens that loads bring, counted once per request."""
    num_blocks: int = 0
    """Blocks that CPU memory holds; 0 before the first step."""
    num_pinned: int = 0
    """Blocks that are on their way in either direction."""
    num_written: int = 0
    """Blocks that are on their way to CPU memory."""
    tiers: list[TierCounters] = field(default_factory=list)
    """CPU memory and then each device behind it; empty without devices."""
    num_promotion_failures: int = 0
    """Blocks of devices for which CPU memory had no room."""


# KV blocks in CPU memory and on devices behind it, as BLIS simulates them: settings, queues of devices, contents.
#
# Facts: sim/kv/offload_*.go and sim/kvtransfer/station.go. Every block that comes to CPU memory is written to all
# devices, and read from the first that has it.

_LEAST_JITTER = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device behind CPU memory, with rates in bytes per microsecond."""

    read_bytes_us: float
    write_bytes_us: float
    base_us: Micros
    num_readers: int = 16
    num_writers: int = 16
    saturation_depth: int = 1
    """Transfers at once from which the whole rate is reached."""
    single_fraction: float = 1.0
    """Share of the rate that a single transfer reaches."""
    jitter_stdev: float = 0.0
    reports_writes: bool = False
    """Whether blocks that were written are changes of the cache, where these are reported."""
    locality: str = ""
    """Place of the device in such changes: LOCAL, REMOTE or nothing."""

    def service_us(self, is_read: bool, num_bytes: float, num_at_once: int, number: int, num_blocks: int = 1) -> Micros:
        """Return the time of a transfer that begins as one of so many in its direction; `number` sets its deviation.

        It moves `num_blocks` blocks of `num_bytes` bytes, one after the other.
        """
        rate, depth, share = self.read_bytes_us if is_read else self.write_bytes_us, self.saturation_depth, 1.0
        if depth > 1 and 0 < self.single_fraction < 1 and num_at_once < depth:
            share = self.single_fraction + (1 - self.single_fraction) * (num_at_once - 1) / (depth - 1)
        took_us = num_blocks * self.base_us + int(num_blocks * num_bytes / (rate * share))
        if self.jitter_stdev > 0:
            took_us = round(took_us * max(_LEAST_JITTER, 1 + self.jitter_stdev * standard_normal(number)))
        return max(1, took_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadChain:
    """CPU memory for `num_blocks` blocks, and the devices behind it."""

    num_blocks: int
    block_bytes: float
    prompt_only: bool = True
    devices: tuple[Device, ...] = ()
    seed: int = 42

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise EngineError(f"CPU memory must hold at least one KV block, {self.block_bytes:.0f} bytes")


class Station:
    """The transfers of one device: those that wait for a reader or a writer, and those that are served."""

    __slots__ = ("_device", "_idle", "_num_bytes", "_num_served", "_seed", "_served", "_waiting")

    def __init__(self, device: Device, num_bytes: float, seed: int) -> None:
        self._device = device
        self._num_bytes = num_bytes
        self._seed = seed
        self._idle = {True: device.num_readers, False: device.num_writers}
        self._num_served = {True: 0, False: 0}
        """Transfers being served, by direction: True is reading."""
        self._waiting: dict[bool, deque[tuple[Micros, int, object, int]]] = {True: deque(), False: deque()}
        self._served: list[tuple[Micros, Micros, bool, int, object, bool, Micros]] = []
        """End, submission, whether it writes, number, block, whether a reader serves, and its time."""

    @property
    def next_at(self) -> Micros | None:
        """The instant at which the next transfer ends; None without any."""
        return self._served[0][0] if self._served else None

    def submit(self, is_read: bool, block: object, number: int, at: Micros, num_blocks: int = 1) -> None:
        """Let a transfer of `num_blocks` blocks wait for its turn, from `at` on."""
        self._waiting[is_read].append((at, number, block, num_blocks))
        self._begin(at)

    def pop(self) -> tuple[bool, object, Micros]:
        """End the next transfer. Returns whether it was read, its block, and the time it was served."""
        at, _, is_write, _, block, has_reader, took_us = heapq.heappop(self._served)
        self._idle[has_reader] += 1
        self._num_served[not is_write] -= 1
        self._begin(at)
        return not is_write, block, took_us

    def _begin(self, at: Micros) -> None:
        for is_reader in (True, False):
            while self._idle[is_reader]:
                is_read = is_reader if self._waiting[is_reader] else not is_reader
                if not self._waiting[is_read]:
                    break
                submitted_at, number, block, num_blocks = self._waiting[is_read].popleft()
                self._idle[is_reader] -= 1
                self._num_served[is_read] += 1
                took_us = self._device.service_us(
                    is_read, self._num_bytes, self._num_served[is_read], self._seed + number, num_blocks
                )
                served = at + took_us, submitted_at, not is_read, number, block, is_reader, took_us
                heapq.heappush(self._served, served)


class ChainedBlocks:
    """The blocks in CPU memory and on devices. Blocks under way in either direction stay in CPU memory."""

    def __init__(self, chain: OffloadChain) -> None:
        self.chain = chain
        self._idle: OrderedDict[object, None] = OrderedDict()
        """Blocks that may leave, the least recently used first."""
        self._pins: dict[object, int] = {}
        """Writes to devices under way, by block; -1 while it is read from a device."""
        self._stations = [Station(each, chain.block_bytes, chain.seed << 40) for each in chain.devices]
        self._stored: list[set[object]] = [set() for _ in chain.devices]
        self._known: set[object] = set()
        """Blocks of which the place on devices has been looked up."""
        self._number = 0
        self.num_promotions = self.num_refused = self.num_stored = self.num_evicted = 0

    def __len__(self) -> int:
        return len(self._idle) + len(self._pins)

    def __contains__(self, block: object) -> bool:
        return block in self._idle or self._pins.get(block, -1) > 0

    @property
    def next_at(self) -> Micros | None:
        """The instant at which the next transfer ends; None without any."""
        return min((each.next_at for each in self._stations if each.next_at is not None), default=None)

    def advance(self, until: Micros) -> None:
        """Let all transfers end that do so by `until`."""
        while True:
            place = min(
                (place for place, each in enumerate(self._stations) if each.next_at is not None),
                key=lambda place: (self._stations[place].next_at, place),
                default=None,
            )
            if place is None or (self._stations[place].next_at or 0) > until:
                return
            is_read, block, _ = self._stations[place].pop()
            if is_read:
                del self._pins[block]
                self._idle[block] = None
                continue
            self._stored[place].add(block)
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
                self._idle[block] = None

    def touch(self, block: object) -> None:
        """Make a block in CPU memory the most recently used."""
        if block in self._idle:
            self._idle.move_to_end(block)

    def mirror(self, blocks: Iterable[object], at: Micros) -> None:
        """Copy blocks to CPU memory, and those that are new there to all devices."""
        for block in blocks:
            if block in self._idle:
                self._idle.move_to_end(block)
            elif block not in self._pins:
                self._store(block, at)

    def _store(self, block: object, at: Micros) -> None:
        if len(self) >= self.chain.num_blocks:
            if not self._idle:
                return
            self._idle.popitem(last=False)
            self.num_evicted += 1
        self.num_stored += 1
        if not self._stations:
            self._idle[block] = None
            return
        self._pins[block] = len(self._stations)
        for station in self._stations:
            self._number += 1
            station.submit(False, block, self._number, at)

    def place_of(self, block: object) -> int | None:
        """The first device that has a block; None where none has it."""
        return next((place for place, stored in enumerate(self._stored) if block in stored), None)

    def is_arriving(self, block: object) -> bool:
        """Whether a block is being read from a device."""
        return self._pins.get(block) == -1

    def look_up(self, blocks: list[object]) -> bool:
        """Return whether the place of all of these was known before; they are known from now on."""
        was_known = self._known.issuperset(blocks)
        self._known.update(blocks)
        return was_known

    def promote(self, blocks: list[object], at: Micros) -> bool:
        """Begin to read all blocks from devices. False, and nothing changed, without room in CPU memory."""
        self.num_promotions += 1
        num_lacking = len(self) + len(blocks) - self.chain.num_blocks
        if num_lacking > len(self._idle):
            self.num_refused += 1
            return False
        for _ in range(num_lacking):
            self._idle.popitem(last=False)
            self.num_evicted += 1
        for block in blocks:
            place = self.place_of(block)
            assert place is not None
            self._pins[block] = -1
            self._number += 1
            self._stations[place].submit(True, block, self._number, at)
        return True
