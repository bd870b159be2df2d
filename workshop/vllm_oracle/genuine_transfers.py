"""The worker's side of vLLM's OffloadingConnector, with transfers that take virtual time and move nothing."""

from typing import Any, Protocol

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (  # type: ignore[import-not-found]
    build_offloading_config,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import (  # type: ignore[import-not-found]
    OffloadingConnectorWorker,
)
from vllm.v1.kv_offload.base import TransferResult  # type: ignore[import-not-found]
from vllm.v1.kv_offload.factory import OffloadingSpecFactory  # type: ignore[import-not-found]


class Clock(Protocol):
    """Where a run is."""

    @property
    def now(self) -> int: ...

    @property
    def computes_until(self) -> int:
        """Instant at which all steps are computed that have been handed to the GPU."""


class VirtualTransfers:
    """One transfer after the other in each direction, each behind the steps that the GPU was given before.

    A worker that waits for a transfer before it reuses blocks loses no time here.
    """

    def __init__(self, clock: Clock, block_us: float) -> None:
        self._clock, self._block_us = clock, block_us
        self._free_at = {"load": 0.0, "store": 0.0}
        self._ends: list[tuple[int, int]] = []
        self.num_changes = 0
        """Transfers that have begun or were reported."""

    def submit_load(self, job: int, source: Any, target: Any, expedited: bool = False) -> bool:
        return self._submit("load", job, len(target.block_ids))

    def submit_store(self, job: int, source: Any, target: Any) -> bool:
        return self._submit("store", job, len(source.block_ids))

    def wait(self, jobs: Any) -> None:
        """Wait for transfers, which takes no time."""

    def get_finished(self) -> list[Any]:
        """Return the transfers that have ended since the latest call."""
        ended = [job for at, job in self._ends if at <= self._clock.now]
        self._ends = [(at, job) for at, job in self._ends if at > self._clock.now]
        self.num_changes += len(ended)
        return [TransferResult(job_id=job, success=True) for job in ended]

    def next_end(self, now: int) -> int | None:
        return min((at for at, _ in self._ends if at > now), default=None)

    def _submit(self, kind: str, job: int, num_blocks: int) -> bool:
        self._begin(kind, job, num_blocks, self._clock.computes_until)
        return True

    def _begin(self, kind: str, job: int, num_blocks: int, at: int) -> None:
        """Let a transfer begin at `at`, or when the one before it in its direction has ended."""
        self._free_at[kind] = end = max(self._free_at[kind], float(at)) + num_blocks * self._block_us
        self._ends.append((round(end), job))
        self.num_changes += 1


def connector_worker(config: Any, kv_cache_config: Any, transfers: VirtualTransfers) -> Any:
    """Return vLLM's worker of the connector, which hands its jobs to `transfers`."""
    spec = OffloadingSpecFactory.create_spec(build_offloading_config(config, kv_cache_config))
    worker = OffloadingConnectorWorker(spec, config, kv_cache_config)
    worker.worker = transfers
    return worker
