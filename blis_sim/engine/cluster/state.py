"""All that decisions about a request are made from: the instances that could take it, as the router sees them."""

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager

from blis_sim.engine.cluster.freshness import Freshness
from blis_sim.engine.cluster.member import Member
from blis_sim.engine.cluster.snapshot import Snapshot
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros


class RoutingState:
    """The candidates for a request, at an instant.

    What instances report is looked at whenever a decision is due and it is old enough, for all instances at once; so
    when it is read follows from what arrives, as in BLIS (sim/cluster/snapshot.go).
    """

    def __init__(self, members: Mapping[int, Member], freshness: Freshness) -> None:
        self.now: Micros = 0
        self.candidates: list[Snapshot] = []
        """Those that can take the request in question, in the order of their numbers."""
        self.freshness = freshness
        self._everybody: list[Snapshot] = []
        """All that take new requests."""
        self._pool: Container[int] | None = None
        """Those of them to which requests are routed, if not to all."""
        self.reads_adapters = False
        """Whether anybody wants to know of adapters."""
        self.reads_caches = False
        """Whether anybody wants to know what KV caches hold."""
        self._members = members
        self._oldest_report_at: Micros = 0
        self._contents: dict[int, Container[object]] = {}
        """What each instance's KV cache held when it was copied."""
        self._copied_at: Micros = 0
        self.num_news = 0
        """Grows whenever candidates, or what is known of them, may have changed; what is in flight is not in it."""
        self._counted_for: Request | None = None
        self._counts: list[int] = []
        self.change()

    def change(self) -> None:
        """Instances have come or gone."""
        self.num_news += 1
        self._everybody = [member.snapshot for member in self._members.values() if member.takes_requests]
        pool = self._pool
        self.candidates = (
            self._everybody if pool is None else [each for each in self._everybody if each.instance in pool]
        )
        self._note_reports()

    @property
    def all_candidates(self) -> list[Snapshot]:
        """Instances that take new requests, whichever of them can take the request in question."""
        return self._everybody

    @property
    def news_due_at(self) -> Micros:
        """From when on instances would report something, if somebody looked."""
        reports_at = self._oldest_report_at + self.freshness.refresh_interval_us
        return min(reports_at, self._copied_at + self.freshness.cache_delay_us) if self.reads_caches else reports_at

    def restrict(self, numbers: Container[int]) -> None:
        """Requests are routed to these only."""
        self._pool = numbers
        self.change()

    @contextmanager
    def only(self, numbers: Container[int]) -> Iterator[list[Snapshot]]:
        """For one decision the candidates are these, as far as they take requests."""
        others = self.candidates
        self.candidates = [each for each in self._everybody if each.instance in numbers]
        self._counted_for = None
        self.num_news += 1
        try:
            yield self.candidates
        finally:
            self.candidates = others
            self._counted_for = None
            self.num_news += 1

    def observe(self, now: Micros) -> None:
        """Read what may be read by now. All instances have done what is due before."""
        self.now = now
        self._counted_for = None
        members = self._members
        for snapshot in self._everybody:
            snapshot.num_in_flight = len(members[snapshot.instance].engine.live)
        if now - self._oldest_report_at >= self.freshness.refresh_interval_us:
            self._read_reports(now)
        if self.reads_caches:
            self._copy_caches(now)

    def _read_reports(self, now: Micros) -> None:
        self.num_news += 1
        for snapshot in self._everybody:
            if now - snapshot.seen_at >= self.freshness.refresh_interval_us:
                engine = self._members[snapshot.instance].engine
                snapshot.report(engine, now)
                if self.reads_adapters:
                    snapshot.report_adapters(engine)
        self._note_reports()

    def _note_reports(self) -> None:
        self._oldest_report_at = min((snapshot.seen_at for snapshot in self._everybody), default=0)

    def _copy_caches(self, now: Micros) -> None:
        """Copy what the KV caches hold, if the copies are old enough. Cost: O(blocks that can be found)."""
        delay = self.freshness.cache_delay_us
        if delay and now - self._copied_at >= delay:
            self._copied_at = now
            self.num_news += 1
            self._contents = {
                snapshot.instance: self._members[snapshot.instance].engine.kv.index.found_now()
                for snapshot in self._everybody
            }

    def cached_blocks(self, request: Request) -> list[int]:
        """How many leading blocks of the prompt each candidate's KV cache holds, as far as the router knows."""
        if self._counted_for is not request:
            self._counted_for = request
            self._counts = self._count_cached_blocks(request)
        return self._counts

    def _count_cached_blocks(self, request: Request) -> list[int]:
        """All instances have blocks of one size, so a block has one name on all of them."""
        blocks, candidates = request.blocks, self.candidates
        if not blocks.num_shareable or not candidates:
            return [0] * len(candidates)
        config = self._members[candidates[0].instance].engine.config
        num_blocks = min(config.num_identified_blocks(request.input_tokens), blocks.num_shareable)
        identities = [blocks.identity(index) for index in range(num_blocks)]
        return [_num_found(identities, self._content(snapshot.instance)) for snapshot in candidates]

    def _content(self, instance: int) -> Container[object]:
        """What the router knows of a KV cache: what it holds now, or what it held when it was copied."""
        if self.freshness.cache_delay_us == 0:
            return self._members[instance].engine.kv.index.identities()
        return self._contents.get(instance, ())


def _num_found(identities: Sequence[object], content: Container[object]) -> int:
    for index, identity in enumerate(identities):
        if identity not in content:
            return index
    return len(identities)
