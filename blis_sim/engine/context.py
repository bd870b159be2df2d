"""State shared by the parts of one engine: configuration, latency model, event queue and records."""

from collections.abc import Callable

from blis_sim.engine.batch_shape import BatchShape, RecentPrompts
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.events import Event, Finished
from blis_sim.engine.kv_cache.changes import CacheChange
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.queue import EventQueue
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.stats import EngineCounters
from blis_sim.engine.step_log import StepLog
from blis_sim.engine.units import Micros


def nothing_due(_until: Micros) -> Micros | None:
    """Return None: without an engine nothing is ever due."""
    return None


class EngineContext:
    """The shared state of an engine and its scheduler: both report events and plan entries of the queue here."""

    __slots__ = (
        "allows_multi_step",
        "cache_changes",
        "catch_up",
        "clock",
        "config",
        "counters",
        "events",
        "last_shape",
        "latency",
        "live",
        "queue",
        "recent_prompts",
        "reports_admissions",
        "reports_batches",
        "steps",
        "until",
    )

    def __init__(
        self,
        config: EngineConfig,
        latency: LatencyModel,
        catch_up: Callable[[Micros], Micros | None] = nothing_due,
        steps: StepLog | None = None,
        reports_admissions: bool = True,
    ) -> None:
        self.catch_up = catch_up
        """Does everything due up to and including an instant, which `until` allows. Returns when something is due next.
        """
        self.config = config
        self.latency = latency
        self.queue = EventQueue()
        self.steps = StepLog() if steps is None else steps
        self.recent_prompts = RecentPrompts()
        self.counters = EngineCounters()
        self.events: list[Event] = []
        """Events since the last call of `advance`."""
        self.live: dict[str, Sequence] = {}
        """Requests that have not ended, by id."""
        self.cache_changes: list[CacheChange] | None = [] if config.reports_kv_changes else None
        """Changes of the content of the prefix cache since the last step ended; None unless they are reported."""
        self.clock: Micros = 0
        """Instant of the last event."""
        self.until: Micros = 0
        """The instant up to which the driver advances the engine."""
        self.reports_admissions = reports_admissions
        """Whether an event is logged when requests join the running batch."""
        self.reports_batches = False
        """Whether an event is logged with the batch of each step; steps must be reported, too."""
        self.allows_multi_step = False
        """Whether the driver accepts steps that are reported together."""
        self.last_shape = BatchShape()
        """Shape of the latest step."""

    def end(self, sequence: Sequence, outcome: Outcome) -> None:
        """Count a request's end. The end is reported separately, when its instant comes."""
        sequence.outcome = outcome
        self.counters.ended[outcome] += 1
        del self.live[sequence.request.id]

    def end_and_report(self, sequence: Sequence, outcome: Outcome, at: Micros, detail: str = "") -> None:
        """Count a request's end and report it."""
        sequence.outcome = outcome  # as in `end`
        self.counters.ended[outcome] += 1
        del self.live[sequence.request.id]
        self.events.append(Finished(at, sequence, outcome, detail))
