"""Devices behind the CPU memory of vLLM's KV cache, as its TieringOffloadingManager uses file systems.

What has come to CPU memory is written to every device. What only a device has is read to CPU memory, and loaded then.
Facts: vllm/v1/kv_offload/tiering/manager.py, async_lookup.py, fs/manager.py, fs/io.py and fs/thread_pool.py.
"""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.kv_cache.offload_tier import Lookup, OffloadTier, Place, RequestUse
from blis_sim.engine.offloading import OffloadConfig, OffloadCounters, Station, TierCounters
from blis_sim.engine.units import Micros

_COUNTED = -1
"""Instead of the instant from which an answer is awaited: it was counted."""


class Question:
    """Whether a device has a block. Its answer is kept as long as a request lives that has asked."""

    __slots__ = ("answer", "is_answered", "is_asked", "requests")

    def __init__(self) -> None:
        self.requests: set[int] = set()
        """Numbers of the requests that have asked."""
        self.is_asked = self.is_answered = False
        """Whether the device was asked, and whether the scheduler has heard the answer."""
        self.answer = False


class Job:
    """Blocks that a device reads or writes, one after the other."""

    __slots__ = ("keys", "submitted_at")

    def __init__(self, keys: list[object], submitted_at: Micros) -> None:
        self.keys = keys
        self.submitted_at = submitted_at


class Device:
    """One device: what it holds, what it was asked, and its reads and writes."""

    __slots__ = (
        "asked",
        "counters",
        "ended",
        "number",
        "questions",
        "requested",
        "station",
        "stored",
        "to_ask",
        "to_read",
    )

    def __init__(self, number: int, station: Station, counters: TierCounters) -> None:
        self.number = number
        """Number of the tier, counted from CPU memory, which is 0."""
        self.station = station
        self.counters = counters
        self.ended: list[tuple[Micros, bool, Job, Micros]] = []
        """Reads and writes that the scheduler has not heard the end of: when, whether it was read, and its time."""
        self.stored: set[object] = set()
        self.questions: dict[object, Question] = {}
        self.requested: dict[int, set[object]] = {}
        """Blocks that each living request has asked for."""
        self.to_ask: list[tuple[object, Question]] = []
        """Questions since the end of the latest composition."""
        self.asked: list[tuple[object, Question]] = []
        """Questions whose answers the scheduler has not heard."""
        self.to_read: dict[int, list[object]] = {}
        """Blocks that requests want since the end of the latest composition, for which CPU memory has room."""

    def advance(self, until: Micros) -> None:
        """Let all reads and writes end that do so by `until`."""
        while (ended_at := self.station.next_at) is not None and ended_at <= until:
            is_read, job, took_us = self.station.pop()
            assert isinstance(job, Job)
            self.ended.append((ended_at, is_read, job, took_us))
            if not is_read:
                self.stored.update(job.keys)


class SecondaryTiers:
    """All devices behind the CPU memory `tier` of one engine; usually none."""

    __slots__ = (
        "_counters",
        "_devices",
        "_has_begun_reads",
        "_now",
        "_num_jobs",
        "_num_promoted",
        "_num_requests",
        "_num_submitted",
        "_settings",
        "_stored_bytes",
        "_tier",
        "written",
    )

    def __init__(self, tier: OffloadTier, config: OffloadConfig, counters: OffloadCounters | None = None) -> None:
        self._tier = tier
        self._counters = counters = counters or OffloadCounters()
        if config.devices:
            counters.tiers = [TierCounters() for _ in range(1 + len(config.devices))]
        stations = [Station(each, config.stored_bytes, config.seed << 40) for each in config.devices]
        self._devices = [Device(number, each, counters.tiers[number]) for number, each in enumerate(stations, 1)]
        self._stored_bytes = config.stored_bytes
        self._settings = config.devices
        self._now: Micros = 0
        self.written: list[tuple[str, list[object]]] = []
        """Blocks that came together to a device which reports them, with its locality; whoever reads them clears the
        list."""
        self._num_jobs = 0
        """Reads and writes that the scheduler has not heard the end of."""
        self._num_submitted = 0
        self._num_requests = 0
        self._has_begun_reads = False
        """Whether the latest composition began reads, for which blocks may have left that the next one wants."""
        self._num_promoted = 0

    @property
    def num_blocks(self) -> tuple[int, ...]:
        """Blocks that were read so far or are being read, and those that each device holds; empty without any."""
        if not self._devices:
            return ()
        return (self._num_promoted, *[len(device.stored) for device in self._devices])

    @property
    def has_jobs(self) -> bool:
        """Whether reads or writes are under way that the scheduler has not heard the end of."""
        return self._num_jobs > 0

    def is_due(self, at: Micros) -> bool:
        """Whether a composition at `at` finds something new."""
        has_news = any(device.asked or device.ended for device in self._devices)
        return has_news or self._has_begun_reads or ((next_at := self.next_at) is not None and next_at <= at)

    @property
    def next_at(self) -> Micros | None:
        """The instant at which the next read or write ends; None without any."""
        return min(
            [each.station.next_at for each in self._devices if each.station.next_at is not None],
            default=None,
        )

    def hear(self, at: Micros) -> None:
        """Take in what has ended by `at`, and what devices have answered since the latest composition."""
        tier = self._tier
        self._now = at
        for device in self._devices:
            device.advance(at)
            for ended_at, is_read, job, took_us in device.ended:
                self._num_jobs -= 1
                counters = device.counters.reads if is_read else device.counters.writes
                counters.num_bytes += len(job.keys) * self._stored_bytes
                counters.seconds += took_us / 1e6
                counters.num_under_way -= 1
                counters.num_blocks_under_way -= len(job.keys)
                if is_read:
                    device.counters.promoted_s.observe((at - job.submitted_at) / 1e6)
                    tier.stored(job.keys, ended_at)
                else:
                    for key in job.keys:
                        tier.unpin(key)
                    settings = self._settings[device.number - 1]
                    if settings.reports_writes and tier.moved is not None:
                        self.written.append((settings.locality, job.keys))
            device.ended.clear()
            for key, question in device.asked:
                question.is_answered = True
                tier.changed.append(key)
                if not question.requests and device.questions.get(key) is question:
                    del device.questions[key]
            device.asked.clear()

    def lookup(self, key: object, place: Place, use: RequestUse) -> Lookup:
        """Ask for a block that CPU memory lacks, and begin to read it from the first device that has it."""
        if not use.number:
            self._num_requests += 1
            use.number = self._num_requests
        is_open = False
        for device in self._devices:
            question = device.questions.get(key)
            if question is None:
                question = device.questions[key] = Question()
                device.to_ask.append((key, question))
            question.requests.add(use.number)
            device.requested.setdefault(use.number, set()).add(key)
            if not question.is_answered:
                is_open = True
                self.count_lookup(device.number, key, Lookup.RETRY, use)
                continue
            self.count_lookup(device.number, key, Lookup.HIT if question.answer else Lookup.MISS, use)
            if question.answer:
                if self._tier.store([key], [place], use) is None:
                    self._counters.num_promotion_failures += 1
                    return Lookup.MISS
                self._num_promoted += 1
                device.to_read.setdefault(use.number, []).append(key)
                return Lookup.PENDING
        return Lookup.RETRY if is_open else Lookup.MISS

    def count_lookup(self, tier: int, key: object, found: Lookup, use: RequestUse) -> None:
        """Count a look-up in a tier of which something is known."""
        counted = use.counted
        if counted is None or found is Lookup.PENDING or (since := counted.get((tier, key))) == _COUNTED:
            return
        if found is Lookup.RETRY:
            counted.setdefault((tier, key), self._now)
            return
        counters = self._counters.tiers[tier]
        counters.num_queries += 1
        counters.num_hits += found is Lookup.HIT
        if since is not None:
            counters.answered_s.observe((self._now - since) / 1e6)
        counted[tier, key] = _COUNTED

    def write(self, keys: SequenceOf[object], at: Micros) -> None:
        """Begin to write blocks that have come to CPU memory, which keeps them until that has ended."""
        for device in self._devices:
            device.advance(at)
            for key in keys:
                self._tier.pin(key)
            num_new = sum(key not in device.stored for key in keys)
            self._submit(device, False, list(keys), num_new, at)

    def end_composition(self, at: Micros) -> None:
        """Begin the reads that a composition has asked for, and ask devices its questions."""
        self._has_begun_reads = any(device.to_read for device in self._devices)
        for device in self._devices:
            for keys in device.to_read.values():
                self._submit(device, True, keys, len(keys), at)
            device.to_read.clear()
        for device in self._devices:
            for key, question in device.to_ask:
                if device.questions.get(key) is question:
                    question.is_asked = True
                    question.answer = key in device.stored
                    device.asked.append((key, question))
            device.to_ask.clear()

    def finish(self, use: RequestUse) -> None:
        """Forget the answers that only a request has asked for which writes nothing more."""
        for device in self._devices:
            for key in device.requested.pop(use.number, ()):
                question = device.questions[key]
                question.requests.discard(use.number)
                if not question.requests and (question.is_answered or not question.is_asked):
                    del device.questions[key]

    def _submit(self, device: Device, is_read: bool, keys: list[object], num_blocks: int, at: Micros) -> None:
        self._num_submitted += 1
        self._num_jobs += 1
        counters = device.counters.reads if is_read else device.counters.writes
        counters.num_under_way += 1
        counters.num_blocks_under_way += len(keys)
        device.station.submit(is_read, Job(keys, at), self._num_submitted, at, num_blocks)
