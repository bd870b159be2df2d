"""Input of admission and routing: the snapshots of candidate instances and the content of their KV caches."""

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager

from blis_sim.engine.cluster.instance import Instance
from blis_sim.engine.cluster.settings import Freshness
from blis_sim.engine.cluster.snapshot import Snapshot
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros


class RoutingState:
    """The candidates for a request at an instant.

    Reports of all instances are read together, when a decision is due and the latest reports are old enough. The
    instants of reports follow from the arrivals, as in BLIS (sim/cluster/snapshot.go).
    """

    def __init__(self, members: Mapping[int, Instance], freshness: Freshness) -> None:
        self.now: Micros = 0
        self.candidates: list[Snapshot] = []
        """Snapshots of the instances that can take the request, in the order of their numbers."""
        self.freshness = freshness
        self._serving: list[Snapshot] = []
        """Snapshots of all instances that take new requests."""
        self._pool: Container[int] | None = None
        """Numbers of the instances to which requests are routed; None for all."""
        self.reads_adapters = False
        """Whether a decision depends on LoRA adapters."""
        self.reads_caches = False
        """Whether a decision depends on the content of KV caches."""
        self.counts_awaited = True
        """Whether requests whose prompts are computed elsewhere are in flight at the instance that will answer."""
        self._members = members
        self._oldest_report_at: Micros = 0
        self._contents: dict[int, Container[object]] = {}
        """Latest copy of the content of each instance's KV cache."""
        self._copied_at: Micros = 0
        self.report_version = 0
        """Grows whenever candidates or their reported figures may have changed; requests in flight do not count."""
        self._counted_for: Request | None = None
        self._counts: list[int] = []
        self.change()

    def change(self) -> None:
        """Recompute the candidates after an instance was added, removed, or changed its state."""
        self.report_version += 1
        self._serving = [member.snapshot for member in self._members.values() if member.takes_requests]
        pool = self._pool
        self.candidates = self._serving if pool is None else [each for each in self._serving if each.instance in pool]
        self._note_reports()

    @property
    def all_candidates(self) -> list[Snapshot]:
        """Snapshots of all instances that take new requests, whether or not they are candidates."""
        return self._serving

    @property
    def reports_due_at(self) -> Micros:
        """Instant from which on `observe` reads new reports."""
        reports_at = self._oldest_report_at + self.freshness.refresh_interval_us
        return min(reports_at, self._copied_at + self.freshness.cache_delay_us) if self.reads_caches else reports_at

    def config_of(self, instance: int) -> EngineConfig:
        """Return the limits of a candidate."""
        return self._members[instance].engine.config

    def restrict(self, numbers: Container[int]) -> None:
        """Route requests to the instances `numbers` only."""
        self._pool = numbers
        self.change()

    @contextmanager
    def only(self, numbers: Container[int]) -> Iterator[list[Snapshot]]:
        """Restrict the candidates to `numbers` within a `with` block."""
        others = self.candidates
        self.candidates = [each for each in self._serving if each.instance in numbers]
        self._counted_for = None
        self.report_version += 1
        try:
            yield self.candidates
        finally:
            self.candidates = others
            self._counted_for = None
            self.report_version += 1

    def observe(self, now: Micros) -> None:
        """Read the reports that are due by `now`. All instances must have been advanced to just before `now`."""
        self.now = now
        self._counted_for = None
        members = self._members
        for snapshot in self._serving:
            member = members[snapshot.instance]
            snapshot.num_in_flight = len(member.engine.live) + (member.num_awaited if self.counts_awaited else 0)
        if now - self._oldest_report_at >= self.freshness.refresh_interval_us:
            self._read_reports(now)
        if self.reads_caches:
            self._copy_caches(now)

    def _read_reports(self, now: Micros) -> None:
        self.report_version += 1
        for snapshot in self._serving:
            if now - snapshot.seen_at >= self.freshness.refresh_interval_us:
                engine = self._members[snapshot.instance].engine
                snapshot.report(engine, now)
                if self.reads_adapters:
                    snapshot.report_adapters(engine)
        self._note_reports()

    def _note_reports(self) -> None:
        self._oldest_report_at = min((snapshot.seen_at for snapshot in self._serving), default=0)

    def _copy_caches(self, now: Micros) -> None:
        """Copy the content of the KV caches if the copies are old enough. Cost: O(blocks that can be found)."""
        delay = self.freshness.cache_delay_us
        if delay and now - self._copied_at >= delay:
            self._copied_at = now
            self.report_version += 1
            self._contents = {
                snapshot.instance: self._members[snapshot.instance].engine.cached_identities_now()
                for snapshot in self._serving
            }

    def cached_blocks(self, request: Request) -> list[int]:
        """Return the number of leading prompt blocks in each candidate's KV cache, as of the router's copy."""
        if self._counted_for is not request:
            self._counted_for = request
            self._counts = self._count_cached_blocks(request)
        return self._counts

    def _count_cached_blocks(self, request: Request) -> list[int]:
        """Count cached leading blocks. All instances have blocks of one size, so block identities are common to all."""
        blocks, candidates = request.blocks, self.candidates
        if not blocks.num_shareable or not candidates:
            return [0] * len(candidates)
        config = self._members[candidates[0].instance].engine.config
        num_blocks = min(config.num_identified_blocks(request.input_tokens), blocks.num_shareable)
        identities = [blocks.identity(index) for index in range(num_blocks)]
        return [_num_found(identities, self._content(snapshot.instance)) for snapshot in candidates]

    def _content(self, instance: int) -> Container[object]:
        """Return the content of a KV cache: current if the delay is 0, else as of the latest copy."""
        if self.freshness.cache_delay_us == 0:
            return self._members[instance].engine.cached_identities()
        return self._contents.get(instance, ())


def _num_found(identities: Sequence[object], content: Container[object]) -> int:
    for index, identity in enumerate(identities):
        if identity not in content:
            return index
    return len(identities)
