"""All that decisions about a request are made from: the instances that could take it, as the router sees them."""

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from engine.cluster.member import Member
from engine.cluster.snapshot import Snapshot
from engine.errors import EngineError
from engine.request import Request
from engine.units import Micros

DEFAULT_REFRESH_INTERVAL_US: Micros = 50_000
DEFAULT_CACHE_DELAY_US: Micros = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """How old what the router knows may get; 0 for never old. Raises EngineError for negative ones."""

    refresh_interval_us: Micros = DEFAULT_REFRESH_INTERVAL_US
    """Of the figures in snapshots."""
    cache_delay_us: Micros = DEFAULT_CACHE_DELAY_US
    """Of what is known about the content of KV caches."""

    def __post_init__(self) -> None:
        for name in ("refresh_interval_us", "cache_delay_us"):
            if (value := getattr(self, name)) < 0:
                raise EngineError(f"{name} must be at least 0, got {value}")


class RoutingState:
    """The candidates for a request, at an instant.

    What instances report is looked at whenever a decision is due and it is old enough, for all instances at once; so
    when it is read follows from what arrives, as in BLIS (sim/cluster/snapshot.go).
    """

    def __init__(self, members: Sequence[Member], freshness: Freshness) -> None:
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
        self._members = members
        self._contents: dict[int, Container[object]] = {}
        """What each instance's KV cache held when it was copied."""
        self._copied_at: Micros = 0
        self._counted_for: Request | None = None
        self._counts: list[int] = []
        self.change()

    def change(self) -> None:
        """Instances have come or gone."""
        self._everybody = [member.snapshot for member in self._members if member.takes_requests]
        pool = self._pool
        self.candidates = (
            self._everybody if pool is None else [each for each in self._everybody if each.instance in pool]
        )

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
        try:
            yield self.candidates
        finally:
            self.candidates = others
            self._counted_for = None

    def observe(self, now: Micros) -> None:
        """Read what may be read by now. All instances have done what is due before."""
        self.now = now
        self._counted_for = None
        interval = self.freshness.refresh_interval_us
        for snapshot in self._everybody:
            engine = self._members[snapshot.instance].engine
            snapshot.num_in_flight = len(engine.live)
            if now - snapshot.seen_at >= interval:
                snapshot.report(engine, now)
                if self.reads_adapters:
                    snapshot.report_adapters(engine)

    def observe_caches(self, now: Micros) -> None:
        """Copy what the KV caches hold, if the copies are old enough. Cost: O(blocks that can be found)."""
        delay = self.freshness.cache_delay_us
        if delay and now - self._copied_at >= delay:
            self._copied_at = now
            self._contents = {
                snapshot.instance: frozenset(self._members[snapshot.instance].engine.kv.index.identities())
                for snapshot in self._everybody
            }

    def cached_blocks(self, request: Request) -> list[int]:
        """How many leading blocks of the prompt each candidate's KV cache holds, as far as the router knows."""
        if self._counted_for is not request:
            self._counted_for = request
            self._counts = [self._cached_blocks(request, snapshot.instance) for snapshot in self.candidates]
        return self._counts

    def _cached_blocks(self, request: Request, instance: int) -> int:
        engine = self._members[instance].engine
        is_live = self.freshness.cache_delay_us == 0
        content = engine.kv.index.identities() if is_live else self._contents.get(instance, ())
        blocks = request.blocks
        num_blocks = min(engine.config.num_identified_blocks(request.input_tokens), blocks.num_shareable)
        for index in range(num_blocks):
            if blocks.identity(index) not in content:
                return index
        return num_blocks
