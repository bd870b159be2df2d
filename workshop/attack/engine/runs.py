"""One random run of an engine or a cluster, and the laws that it must keep.

A run is made plainly, step by step, and then fast, in leaps: both must give equal events.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from random import Random
from typing import Any

from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.core import Engine
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import CacheChanged, Event, Finished, Preempted, Scheduled, StepDone
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.sequence import Outcome
from blis_sim.engine.simulation import ProgressWatch
from blis_sim.engine.units import Micros
from workshop.attack.engine.clusters import ClusterWorkload, draw_cluster
from workshop.attack.engine.workloads import GRID_US, Workload, draw_workload

MOST_INSTANTS = 60_000
"""Far more instants at which something happens than a run of this size has: one that comes here spins."""
MOST_EMPTY_STEPS = 2_000_000
"""By BLIS's rules a prompt that waits for blocks of a transfer waits in empty steps of 1 us."""
LEAP_US = 40_000
COMPLETED = (Outcome.COMPLETED, Outcome.LENGTH_CAPPED)
KINDS = ("vllm", "blis", "vllm cluster", "blis cluster", "operated")


class BrokenLawError(Exception):
    """A broken law."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """All that is compared of a run, in plain values."""

    endings: list[tuple[object, ...]]
    engines: list[tuple[object, ...]]
    """Counters of each instance, and the starts and ends of its steps."""
    clock: Micros
    details: str
    """A hash of every event, for runs that report them all."""

    def digest(self) -> str:
        return sha256(repr((self.endings, self.engines, self.clock, self.details)).encode()).hexdigest()[:16]

    def is_same_run(self, other: "RunRecord") -> bool:
        """Whether both have the same endings at the same instants, whatever else they report."""
        return (self.endings, self.engines, self.clock) == (other.endings, other.engines, other.clock)


def kind_of(number: int) -> str:
    return KINDS[number % len(KINDS)]


def record_run(number: int, seed: int) -> RunRecord:
    """Make run `number` twice. Raises BrokenLawError for a law that does not hold."""
    random = Random(f"{seed} {number}")
    kind = kind_of(number)
    scheduling = "blis" if "blis" in kind else "vllm"
    if kind.endswith("cluster"):
        drawn = draw_cluster(random, scheduling)
        plain = _cluster_story(drawn, reports_steps=True)
        other = _cluster_story(drawn, reports_steps=False)
    elif kind == "operated":
        return _operated_story(random)
    else:
        workload = draw_workload(random, scheduling)
        plain = _engine_story(workload, reports_steps=True)
        other = _engine_story(workload, reports_steps=False)
    if not plain.is_same_run(other):
        raise BrokenLawError(f"in leaps it is another run: {_difference(plain, other)}")
    return plain


def _difference(plain: RunRecord, other: RunRecord) -> str:
    for name in ("endings", "engines"):
        for mine, theirs in zip(getattr(plain, name), getattr(other, name), strict=False):
            if mine != theirs:
                return f"{name}: {str(mine)[:300]} and {str(theirs)[:300]}"
    return f"clock: {plain.clock} and {other.clock}, {len(plain.endings)} and {len(other.endings)} endings"


def _engine_story(workload: Workload, reports_steps: bool) -> RunRecord:
    engine = Engine(workload.config, workload.latency, reports_steps)
    return _reported(engine, workload, LEAP_US * (not reports_steps), lambda _at: None)


def _cluster_story(drawn: ClusterWorkload, reports_steps: bool) -> RunRecord:
    cluster = drawn.cluster(reports_steps)
    story = _reported(cluster, drawn.workload, LEAP_US * (not reports_steps), lambda _at: None)
    _check_cluster(cluster)
    return story


def _operated_story(random: Random) -> RunRecord:
    """An engine that is paused, resumed, cleared and starved of blocks while it runs."""
    scheduling = random.choice(["vllm", "blis"])
    workload = draw_workload(random, scheduling)
    engine = Engine(workload.config, workload.latency)
    operations: dict[Micros, Callable[[Micros], object]] = {}
    for _ in range(random.randint(1, 6)):
        operations[random.randint(1, 200) * GRID_US + 1] = _operation(random, engine)
    last = max(operations) + 50_000
    operations[last] = lambda at: engine.hold(PauseState.NONE, at)
    if scheduling == "vllm":
        operations[last + 1] = lambda at: engine.shrink_cache(0, at)
    due = sorted(operations.items())

    def operate(until: Micros) -> None:
        while due and due[0][0] <= until:
            at, operation = due.pop(0)
            operation(at)

    return _reported(engine, workload, 0, operate, [at for at, _ in due])


def _operation(random: Random, engine: Engine) -> Callable[[Micros], object]:
    kind = random.choice(["hold", "admissions", "resume", "clear", "preempt", "withhold"])
    num_blocks = random.randint(0, 50)
    if kind == "withhold" and engine.config.engine == "vllm":
        return lambda at: engine.shrink_cache(num_blocks, at)
    if kind in ("clear", "preempt"):
        return lambda at: engine.reset_prefix_cache(at, preempts_running=kind == "preempt")
    hold = {"hold": PauseState.EVERYTHING, "admissions": PauseState.ADMISSIONS}.get(kind, PauseState.NONE)
    return lambda at: engine.hold(hold, at)


def _reported(
    simulation: Engine | Cluster,
    workload: Workload,
    leap_us: Micros,
    operate: Callable[[Micros], None],
    stops: Sequence[Micros] = (),
) -> RunRecord:
    """Run to the end. `operate` is called with each instant of `stops` when all before it has been done."""
    for at, request in workload.arrivals:
        simulation.submit(request, at)
    for at, request_id in workload.hang_ups:
        simulation.abort(request_id, at)
    events: list[Event] = []
    waiting_stops, watch = list(stops), ProgressWatch(simulation)
    num_instants, last_at = 0, 0
    details = sha256()
    while True:
        due_at = simulation.next_event_at()
        if waiting_stops and (due_at is None or due_at >= waiting_stops[0]):
            stop = waiting_stops.pop(0)
            reported = simulation.advance(stop - 1)
            operate(stop)
        elif due_at is None:
            break
        else:
            reported = simulation.advance(due_at + leap_us)
        for event in reported:
            if event.at < last_at:
                raise BrokenLawError(f"the clock goes back from {last_at} to {event.at}")
            last_at = event.at
            details.update(_described(event).encode())
        events += reported
        num_instants += not reported or not all(isinstance(event, StepDone) and not event.emitted for event in reported)
        try:
            watch.check()
        except EngineError:
            return RunRecord([], [], 0, "requests take KV blocks from each other for ever, which ends a simulated run")
        most_steps = max(len(engine.steps) for engine in simulation.instances)
        if num_instants > MOST_INSTANTS or most_steps > MOST_EMPTY_STEPS:
            raise BrokenLawError(f"it does not end: {len(simulation.instances[0].steps)} steps by {due_at} us")
    _check_end(simulation, workload, events)
    return RunRecord(
        [_ending(event) for event in events if isinstance(event, Finished)],
        [(repr(asdict(engine.counters)), _instants_of_steps(engine)) for engine in simulation.instances],
        simulation.clock,
        details.hexdigest(),
    )


def _instants_of_steps(engine: Engine) -> tuple[str, int]:
    log = engine.steps
    starts, ends = log.span(0, len(log)) if len(log) else ((), ())
    return sha256(repr((list(map(int, starts)), list(map(int, ends)))).encode()).hexdigest()[:16], len(log)


def _ending(event: Finished) -> tuple[object, ...]:
    sequence = event.sequence
    return (
        event.at,
        sequence.request.id,
        str(event.outcome),
        sequence.instance,
        sequence.scheduled_at,
        sequence.first_token_at,
        sequence.num_output_tokens,
        sequence.num_preemptions,
        [list(run) for run in sequence.token_runs],
    )


def _described(event: Event) -> str:
    if isinstance(event, Scheduled | Preempted | Finished):
        return f"{type(event).__name__} {event.at} {event.sequence.request.id};"
    if isinstance(event, StepDone):
        return f"step {event.at} {event.index} {[each.request.id for each in event.emitted]};"
    if isinstance(event, CacheChanged):
        return f"cache {event.at} {[type(each).__name__ for each in event.changes]};"
    return f"{type(event).__name__} {event.at};"


def _check_end(simulation: Engine | Cluster, workload: Workload, events: Sequence[Event]) -> None:
    """Every request has ended once, in order, and has left nothing behind."""
    ended = Counter(event.sequence.request.id for event in events if isinstance(event, Finished))
    arrived = Counter(request.id for _, request in workload.arrivals)
    if ended != arrived:
        raise BrokenLawError(f"requests lost or ended twice: {arrived - ended}, {ended - arrived}")
    for engine in simulation.instances:
        try:
            engine.check_integrity()
        except AssertionError as error:
            raise BrokenLawError(f"integrity: {error}") from error
        if engine.stats.kv_blocks_used or engine.live or engine.stats.num_running or engine.stats.num_waiting:
            raise BrokenLawError(f"something is left: {engine.stats}, {list(engine.live)}")
    for event in events:
        if isinstance(event, Finished):
            _check_ending(event)


def _check_ending(event: Finished) -> None:
    sequence, request = event.sequence, event.sequence.request
    if event.outcome not in COMPLETED:
        return
    scheduled_at, first_at = sequence.scheduled_at, sequence.first_token_at
    if scheduled_at is None or first_at is None:
        raise BrokenLawError(f"{request.id} completed without being scheduled")
    if sequence.prompt_part is None and not sequence.arrived_at <= scheduled_at < first_at <= event.at:
        raise BrokenLawError(
            f"{request.id}: {sequence.arrived_at}, {scheduled_at}, {first_at}, {event.at} not in order"
        )
    if event.outcome is Outcome.COMPLETED and sequence.num_output_tokens != request.output_tokens:
        raise BrokenLawError(f"{request.id} has {sequence.num_output_tokens} of {request.output_tokens} tokens")


def _check_cluster(cluster: Cluster) -> None:
    """No request waits in front of the instances, and those that were drained or killed can be removed."""
    waiting: dict[str, Any] = {}
    if cluster.gateway is not None:
        waiting["gateway"] = cluster.gateway.num_waiting
    if cluster.disaggregation is not None:
        waiting["in transfer"] = cluster.disaggregation.num_in_transfer
        waiting["transfers"] = cluster.disaggregation.network.num_active
    if any(waiting.values()):
        raise BrokenLawError(f"something waits for ever: {waiting}")
    for number in sorted(cluster.leaving):
        if not cluster.remove(number):
            raise BrokenLawError(f"instance {number} cannot be removed")
