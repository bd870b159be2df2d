"""vLLM's TieringOffloadingManager and file-system tiers, whose threads take virtual time and whose files are names.

What a tier asks of its files, and which jobs it gives to its threads, is vLLM's; only the threads are left out.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import Locality, LookupResult  # type: ignore[import-not-found]
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager  # type: ignore[import-not-found]
from vllm.v1.kv_offload.tiering.fs.manager import (  # type: ignore[import-not-found]
    FileSystemTierManager,
    FsAsyncLookupManager,
)
from vllm.v1.kv_offload.tiering.manager import (  # type: ignore[import-not-found]
    CPUPrimaryTierOffloadingManager,
    TieringOffloadingManager,
)
from vllm.v1.kv_offload.tiering.metrics import TieringMetricsTracker  # type: ignore[import-not-found]

from blis_sim.engine.offloading import Device, OffloadConfig, Station
from workshop.vllm_oracle.genuine_transfers import Clock

BLOCK_VIEW_BYTES = 8
"""Bytes of a block in the memory that is only shown to the tiers."""


class VirtualThreads:
    """The pool of threads of a tier. A job is one task; blocks that have a file are not written again."""

    def __init__(self, clock: Clock, device: Device, config: OffloadConfig) -> None:
        self._clock = clock
        self._station = Station(device, config.stored_bytes, config.seed << 40)
        self._ended: list[int] = []
        self._names: dict[int, tuple[object, ...]] = {}
        self.files: set[object] = set()
        self.num_changes = 0
        """Jobs that have begun or were reported."""
        self.num_blocks_of: dict[int, int] = {}

    def enqueue_store(self, job: int, num_tasks: int, tasks: list[Any]) -> None:
        self._settle()
        names = tasks[0].args[0]
        num_new = sum(name not in self.files for name in names)
        self._submit(job, False, names, num_new)

    def enqueue_load(self, job: int, num_tasks: int, tasks: list[Any]) -> None:
        self._submit(job, True, (), self.num_blocks_of[job])

    def get_finished(self) -> list[tuple[int, bool, float]]:
        self._settle()
        ended, self._ended = self._ended, []
        self.num_changes += len(ended)
        return [(job, True, 0.0) for job in ended]

    def next_end(self) -> int | None:
        return self._station.next_at

    def exist(self, names: Iterable[object]) -> list[bool]:
        """Whether files exist now, those of jobs included that nobody has asked the end of."""
        self._settle()
        return [name in self.files for name in names]

    def _settle(self) -> None:
        while (at := self._station.next_at) is not None and at <= self._clock.now:
            job = self._station.pop()[1]
            assert isinstance(job, int)
            self.files.update(self._names.pop(job))
            self._ended.append(job)

    def _submit(self, job: int, is_read: bool, names: Iterable[object], num_blocks: int) -> None:
        self._settle()
        self.num_changes += 1
        self._names[job] = tuple(names)
        self._station.submit(is_read, job, job + 1, self._clock.now, num_blocks)


class SynchronousLookups(FsAsyncLookupManager):  # type: ignore[misc]
    """vLLM's look-ups of a tier, whose thread answers before time passes."""

    def __init__(self, tier: Any, tier_type: str) -> None:
        super().__init__(tier=tier, tier_type=tier_type)
        self.shutdown()

    def batch_lookup(self, keys: list[Any], req_context: Any) -> list[bool]:
        found: list[bool] = self._tier._pool.exist(keys)
        return found

    def flush(self) -> None:
        super().flush()
        self._lookup_queue.put(None)
        self._worker()


class Names:
    """Names of files, which are the keys of their blocks."""

    def get_file_name(self, key: Any) -> Any:
        return key


class VirtualFileSystem(FileSystemTierManager):  # type: ignore[misc]
    """vLLM's tier in a file system, with threads that take virtual time."""

    def __init__(self, clock: Clock, device: Device, config: OffloadConfig, view: memoryview, publishes: bool) -> None:
        SecondaryTierManager.__init__(self, None, view, "fs")
        self.locality = Locality(device.locality) if device.locality else None
        self.events: list[Any] | None = [] if publishes and device.reports_writes else None
        self._store_job_keys: dict[int, Any] = {}
        self._load_job_keys: dict[int, Any] = {}
        self._load_progress: dict[int, int] = {}
        self._block_size = BLOCK_VIEW_BYTES
        self._use_o_direct = False
        self.file_mapper = Names()
        self._pool = VirtualThreads(clock, device, config)
        self._job_block_counts = self._pool.num_blocks_of
        self._lookup_manager = SynchronousLookups(self, "fs")


class Memory:
    """CPU memory that is only shown."""

    def __init__(self, num_blocks: int) -> None:
        self._view = np.zeros((num_blocks, BLOCK_VIEW_BYTES), dtype=np.int8)

    def create_kv_memoryview(self) -> memoryview:
        return self._view.data


class CountedLookups(TieringMetricsTracker):  # type: ignore[misc]
    """vLLM's metrics of tiers, whose counters are not emptied."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.num_queries: Counter[str] = Counter()
        self.num_hits: Counter[str] = Counter()
        self.num_failures = 0

    def _observe_resolved_lookup(self, label: tuple[str], result: LookupResult, *times: Any) -> None:
        self.num_queries[label[0]] += 1
        self.num_hits[label[0]] += result is LookupResult.HIT

    def on_promotion_allocation_failure(self) -> None:
        self.num_failures += 1


class CountingManager(TieringOffloadingManager):  # type: ignore[misc]
    """vLLM's manager, which counts the blocks that tiers give."""

    num_promoted = 0

    def _initiate_promotion(self, tier_idx: int, key: Any, req_context: Any) -> bool:
        has_room: bool = super()._initiate_promotion(tier_idx, key, req_context)
        self.num_promoted += has_room
        return has_room


class Tiers:
    """The manager of CPU memory with tiers behind it, and the tiers."""

    def __init__(self, clock: Clock, config: OffloadConfig, publishes: bool) -> None:
        primary = CPUPrimaryTierOffloadingManager(config.num_blocks, Memory(config.num_blocks), enable_events=publishes)
        view = primary.get_kv_memoryview()
        self._tiers = [VirtualFileSystem(clock, device, config, view, publishes) for device in config.devices]
        self.manager = CountingManager(primary, list(self._tiers))
        types = [tier.tier_type for tier in self._tiers]
        self.manager._metrics = self._counts = CountedLookups(types, config.num_blocks, BLOCK_VIEW_BYTES)

    @property
    def num_changes(self) -> int:
        """Reads and writes that have begun or were reported."""
        return sum(tier._pool.num_changes for tier in self._tiers)

    @property
    def num_failures(self) -> int:
        """Blocks that CPU memory had no room for when a tier had them."""
        return self._counts.num_failures

    @num_failures.setter
    def num_failures(self, number: int) -> None:
        self._counts.num_failures = number

    @property
    def num_behind(self) -> tuple[int, ...]:
        """Blocks that tiers have given so far, those that each tier holds, and counts of look-ups."""
        counts = self._counts
        labels = [counts.primary_tier_label, *(counts.tier_label(number) for number in range(len(self._tiers)))]
        return (
            self.manager.num_promoted,
            *(len(tier._pool.files) for tier in self._tiers),
            counts.num_failures,
            *(counted[label] for (label,) in labels for counted in (counts.num_queries, counts.num_hits)),
        )

    def next_end(self) -> int | None:
        """Return the instant at which the next read or write ends; None without any."""
        return min((at for tier in self._tiers if (at := tier._pool.next_end()) is not None), default=None)
