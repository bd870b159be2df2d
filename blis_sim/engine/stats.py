"""Counters and gauges of one engine."""

from dataclasses import dataclass, field

from blis_sim.engine.lora import AdapterCounters
from blis_sim.engine.offloading import OffloadCounters
from blis_sim.engine.sequence import Outcome


@dataclass(slots=True)
class EngineCounters:
    """Counters of an engine since its start. The engine alone writes it.

    Conservation (INV-1): requests queued or refused = ended, by outcome, + waiting + running.
    """

    num_enqueued: int = 0
    """Requests that reached the admission checks."""
    ended: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    input_tokens: int = 0
    """Prompt tokens of all requests that passed the admission checks, later time-outs included."""
    output_tokens: int = 0
    """Tokens of completed requests."""
    num_preemptions: int = 0
    num_reservations_evicted: int = 0
    """Preemptions of waiting requests whose prompts another instance had computed."""
    num_kv_allocation_failures: int = 0
    """Completions for whose last token no block was free."""
    num_drafts: int = 0
    """Times that drafted tokens of a request were verified."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_per_position: list[int] = field(default_factory=list)
    """Drafted tokens accepted, by their place in the draft; empty without speculative decoding."""
    adapters: AdapterCounters = field(default_factory=AdapterCounters)
    offload: OffloadCounters = field(default_factory=OffloadCounters)

    def count_drafts(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one request's drafts of one step, of which the first `num_accepted_tokens` were accepted."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        for position in range(num_accepted_tokens):
            self.num_accepted_per_position[position] += 1


@dataclass(slots=True)
class EngineStats:
    """One instant of an engine, for metrics endpoints and reports.

    No instance is changed after it is made. The class is not frozen because that would triple the cost of making one,
    and routers make many.
    """

    num_running: int
    num_waiting: int
    kv_blocks_total: int
    kv_blocks_used: int
    num_preemptions: int
    prefix_hit_tokens: int
    """Prompt tokens whose blocks were found in the cache."""
    num_deferred: int = 0
    """Waiting requests that a composition has passed over, for another reason than room."""

    @property
    def kv_usage_fraction(self) -> float:
        return self.kv_blocks_used / self.kv_blocks_total
