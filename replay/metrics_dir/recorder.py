"""Writer of the folder of metrics of a run: its unfinished requests, figures, and graphs of tasks."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import accumulate, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.policies import deployments_of
from blis_sim.engine.core import Engine
from blis_sim.engine.delivery import OutputQueue
from blis_sim.engine.deployment import Deployment
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import BatchDone, Event, Finished, Preempted, Scheduled, StepDone
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.step_work import MOE_COMM_BACKENDS, step_work
from blis_sim.engine.sequence import NOWHERE, Outcome, Sequence
from blis_sim.engine.units import Micros
from replay.analysis.clusters import disaggregation_of
from replay.metrics_dir.tables import (
    MOST_IDS,
    REQUEST_COLUMNS,
    ChromeTrace,
    EventTrace,
    JsonItems,
    KVTransfer,
    Place,
    RequestMetrics,
    RowFile,
    csv_writer,
    plain,
    request_row,
    write_config,
)
from replay.simulation.record import COMPLETED, NEVER, ClientView, Floats, Latencies
from traces.text_file import write_content

if TYPE_CHECKING:
    from blis_sim.engine.cluster.cluster import Cluster
    from blis_sim.engine.data_parallel import RankGroup

# The unfinished requests of a run, with the state that their metrics need.
#
# Sequences that an instance decodes are held once for all batches that decode the same ones. The facts of a
# sequence's latest batch are derived when the sequence leaves: noting them for each sequence of each batch takes more
# time than the simulation.


@dataclass(slots=True)
class TrackedRequest:
    """One request, or the part of one that computes its prompt elsewhere."""

    number: int
    inter_arrival_s: float | None = None
    scheduled_at: Micros | None = None
    """When it first joined a batch."""
    executed_us: Micros = 0
    """The time of its batches, those in which its cohort decoded excepted. While a group has the sequence, the time of
    the group's batches before is subtracted, and all of the group's time is to be added."""
    first: Place | None = None
    prompt: Place | None = None
    """The batch that completed its prompt."""
    prompt_end_us: Micros = 0
    last: Place | None = None
    first_wait_us: Micros = 0
    """Wait of the first token of a request for the others of its step."""
    last_wait_us: Micros = 0
    group: "DecodeGroup | None" = None
    """The group that has the sequence now."""


class DecodeGroup:
    """The sequences that the latest batch of one instance decoded."""

    __slots__ = (
        "_first_wait_us",
        "_members",
        "_place",
        "_positions",
        "_sequences",
        "_waits_us",
        "counts_time",
        "executed_us",
        "numbers",
        "queue",
    )

    def __init__(self, latency: LatencyModel, *, counts_time: bool) -> None:
        self.queue = OutputQueue(latency)
        """The API server process of the instance."""
        self.counts_time = counts_time
        """Whether tracked requests count the time of these batches. Where a cohort decodes, the log of steps has it."""
        self.executed_us: Micros = 0
        """The time of all batches so far."""
        self.numbers: list[int] = []
        """Numbers of the first requests, as many as a timeline shows."""
        self._sequences: SequenceOf[Sequence] = []
        self._members: dict[Sequence, int] = {}
        """Sequences of `_sequences` that have not left since, with the numbers of their requests."""
        self._positions: dict[Sequence, int] = {}
        """Positions in `_sequences`; empty until one leaves."""
        self._place: Place | None = None
        self._first_wait_us: float | None = None
        """Wait of the tokens of the latest batch for those before them; None while its tokens are not known."""
        self._waits_us: list[float] = []
        """Waits of these tokens, from none to all of them; empty until one is needed."""

    def compute(
        self,
        sequences: SequenceOf[Sequence],
        place: Place,
        duration_us: Micros,
        tracked_of: Callable[[Sequence], TrackedRequest],
    ) -> None:
        """Note that the next batch decoded `sequences`."""
        members = self._members
        if len(members) != len(sequences) or sequences != self._sequences:
            remaining = set(sequences)
            for sequence in members.keys() - remaining:
                self.leave(sequence, tracked_of(sequence))
            for sequence in remaining - members.keys():
                self._join(sequence, tracked_of(sequence))
            self._sequences, self._positions = sequences, {}
            self.numbers = list(map(members.__getitem__, sequences[:MOST_IDS]))
        self._place = place
        self._first_wait_us, self._waits_us = None, []
        if self.counts_time:
            self.executed_us += duration_us

    def emit(self, wait_us: float) -> None:
        """Note how long the tokens of the latest batch wait before the first of them is handed out."""
        self._first_wait_us = wait_us

    def waits_us(self) -> list[float]:
        """Return the waits of the tokens of the latest batch: before the first, and after each of them."""
        if not self._waits_us and self._first_wait_us is not None:
            turns_us = repeat(self.queue.turn_us, len(self._sequences))
            self._waits_us = list(accumulate(turns_us, initial=self._first_wait_us))
        return self._waits_us

    def leave(self, sequence: Sequence, tracked: TrackedRequest) -> None:
        """Store the facts of the latest batch with a sequence that leaves the group."""
        tracked.group, tracked.last = None, self._place
        tracked.executed_us += self.executed_us
        self._members.pop(sequence, None)
        waits_us = self.waits_us()
        if waits_us:
            if not self._positions:
                self._positions = {each: position for position, each in enumerate(self._sequences)}
            tracked.last_wait_us = int(waits_us[self._positions[sequence] + 1])

    def _join(self, sequence: Sequence, tracked: TrackedRequest) -> None:
        if tracked.group is not None:
            tracked.group.leave(sequence, tracked)
        tracked.group = self
        self._members[sequence] = tracked.number
        tracked.executed_us -= self.executed_us


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTraffic:
    """How prompts travel from the instances that compute them to those that decode."""

    bytes_per_block: float
    bytes_per_value: float
    dtype: str


class RequestTracker:
    """All requests under way, by sequence."""

    def __init__(self, engines: SequenceOf[Engine], traffic: KVTraffic | None) -> None:
        self._engines = engines
        self._traffic = traffic
        self._views: dict[int, ClientView] = {}
        self._requests: dict[Sequence, TrackedRequest] = {}
        self._parts: dict[str, Sequence] = {}
        """Requests whose prompts other instances may compute, by id; empty without such instances."""
        self._num_arrived = 0
        self._latest_arrival: Micros | None = None
        self._groups: dict[int, DecodeGroup] = {}
        self._batches: dict[int, BatchDone] = {}
        """The latest batch of each instance."""

    def begin(self, sequence: Sequence) -> int:
        """Note an arrival. Returns the number of the request."""
        latest, at = self._latest_arrival, sequence.arrived_at
        tracked = TrackedRequest(self._num_arrived, None if latest is None else (at - latest) / 1e6)
        self._requests[sequence] = tracked
        if self._traffic is not None:
            self._parts[sequence.request.id] = sequence
        self._latest_arrival = at
        self._num_arrived += 1
        return tracked.number

    def number(self, sequence: Sequence) -> int:
        """Return the number of a request."""
        return self._tracked(sequence).number

    def scheduled(self, sequence: Sequence, at: Micros) -> None:
        """Note that a request joined the running batch."""
        tracked = self._tracked(sequence)
        if tracked.scheduled_at is None:
            tracked.scheduled_at = at

    def computed(self, place: Place, event: BatchDone, duration_us: Micros) -> list[int]:
        """Note which requests were computed in a batch that took so long in all stages.

        Returns the numbers of those with their prompts in it, and of as many others as a timeline shows.
        """
        instance = place.replica
        if self._engines[instance].config.engine == "blis":
            self._drop_ended(event)
        self._batches[instance] = event
        numbers: list[int] = []
        for sequence, _ in event.prompts:
            tracked = self._tracked(sequence)
            tracked.executed_us += duration_us
            tracked.first = tracked.first or place
            tracked.prompt, tracked.prompt_end_us = place, event.at
            if tracked.scheduled_at is None:  # a part of a request, whose admission is not reported
                tracked.scheduled_at = event.started_at
            numbers.append(tracked.number)
        group = self._group(instance)
        group.compute(event.decoding, place, duration_us, self._tracked)
        return numbers + group.numbers

    def _drop_ended(self, event: BatchDone) -> None:
        """Take out requests that BLIS's scheduling ended during the step: with it a hang-up takes effect at once."""
        if any(sequence not in self._requests for sequence in (*(each for each, _ in event.prompts), *event.decoding)):
            event.prompts = [each for each in event.prompts if self._is_under_way(each[0])]
            event.decoding = [each for each in event.decoding if self._is_under_way(each)]

    def _is_under_way(self, sequence: Sequence) -> bool:
        """Return whether a request has not ended, or the request that it is a part of."""
        from blis_sim.engine.cluster.disaggregation import PROMPT_SUFFIX  # few runs have parts

        return sequence in self._requests or sequence.request.id.removesuffix(PROMPT_SUFFIX) in self._parts

    def emitted(self, instance: int, num_tokens: int) -> None:
        """Note how many tokens the latest batch of an instance brought: each waits until all are handed out."""
        batch = self._batches.get(instance)
        if batch is None or not self._view(instance).serializes_tokens:
            return
        group, step_us = self._group(instance), num_tokens * self._engines[instance].latency.output_sequence_time
        group.emit(step_us + group.queue.enter(batch.at, num_tokens))
        if not batch.prompts:
            return
        wait_us = group.waits_us()[-1]
        for sequence, _ in batch.prompts:
            wait_us += group.queue.turn_us
            tracked = self._tracked(sequence)
            tracked.first_wait_us = tracked.last_wait_us = int(wait_us)

    def unfinished(self) -> Iterator[Sequence]:
        """Yield the requests that have not ended, in order of arrival."""
        yield from [sequence for sequence in self._requests if not sequence.is_prefill_subrequest]

    def end(self, sequence: Sequence) -> None:
        """Forget a request."""
        self._store_latest(sequence)
        self._requests.pop(sequence, None)
        self._parts.pop(sequence.request.id, None)
        if sequence.prompt_part is not None:
            self._requests.pop(sequence.prompt_part, None)

    def way(self, sequence: Sequence) -> list[Place]:
        """Return the first batch of a request, that of its first token and its last one."""
        self._store_latest(sequence)
        parts = [self._requests.get(sequence.prompt_part)] if sequence.prompt_part is not None else []
        parts.append(self._requests[sequence])
        places = [
            place for tracked in parts if tracked is not None for place in (tracked.first, tracked.prompt, tracked.last)
        ]
        return [place for place in places if place is not None]

    def phases(self, sequence: Sequence, ended_at: Micros) -> list[tuple[str, Micros, Micros]]:
        """Return what a request went through, on the engine's clock."""
        scheduled_at, first_at = self._scheduled_at(sequence), sequence.first_token_at
        arrived_at = sequence.arrived_at
        if scheduled_at is None:
            return [("waiting", arrived_at, ended_at)]
        phases = [("waiting", arrived_at, scheduled_at)]
        prompt = sequence.prompt_part
        if prompt is not None and prompt.first_token_at is not None and sequence.queued_at is not None:
            phases.append(("prefill", scheduled_at, prompt.first_token_at))
            moved_at = max(sequence.queued_at, prompt.first_token_at)  # BLIS moves a prompt during its last step
            return [*phases, ("KV transfer", prompt.first_token_at, moved_at), ("decode", moved_at, ended_at)]
        if first_at is None:
            return [*phases, ("prefill", scheduled_at, ended_at)]
        return [*phases, ("prefill", scheduled_at, first_at), ("decode", first_at, ended_at)]

    def facts(self, sequence: Sequence, at: Micros, ended_at: Micros | None) -> RequestMetrics:
        """Return the metrics of a request at `at`, by which it may have ended."""
        self._store_latest(sequence)
        tracked, prompt = self._tracked(sequence), sequence.prompt_part
        arrived_us, request = sequence.arrived_at, sequence.request
        ttft_us, e2e_us, itl_us, num_tokens = self._latencies(sequence, at, tracked)
        scheduled_at, executed_us = self._scheduled_at(sequence), self._executed_us(sequence)
        is_completed = ended_at is not None and sequence.outcome in COMPLETED and e2e_us != NEVER
        waited_us = 0 if scheduled_at is None else max(0, at - scheduled_at - executed_us)
        transfer = self._transfer(sequence)
        moved_at = None if transfer is None or sequence.queued_at is None else sequence.queued_at / 1e6
        return RequestMetrics(
            number=tracked.number,
            arrived_at_s=arrived_us / 1e6,
            inter_arrival_s=tracked.inter_arrival_s,
            prompt_tokens=request.input_tokens,
            output_tokens=num_tokens if is_completed else request.output_tokens,
            num_restarts=sequence.num_preemptions + (0 if prompt is None else prompt.num_preemptions),
            scheduled_at_s=None if scheduled_at is None else scheduled_at / 1e6,
            first_token_at_s=None if ttft_us == NEVER else (arrived_us + ttft_us) / 1e6,
            completed_at_s=(arrived_us + e2e_us) / 1e6 if is_completed else None,
            execution_s=executed_us / 1e6,
            preempted_s=waited_us / 1e6,
            itl_mean_s=itl_us / 1e6,
            prefill_replica=prompt.instance if prompt is not None else None,
            decode_replica=sequence.instance if prompt is not None else None,
            decode_arrived_at_s=moved_at,
            transfer=transfer,
        )

    def _latencies(self, sequence: Sequence, at: Micros, tracked: TrackedRequest) -> tuple[Micros, Micros, float, int]:
        """Return TTFT, E2E and mean ITL as the client of a request sees them, and its output tokens."""
        if sequence.instance == NOWHERE:
            return NEVER, NEVER, 0.0, 0
        view, prompt = self._view(sequence.instance), sequence.prompt_part
        found: Latencies
        if prompt is None:
            found = view.latencies(sequence, at)
        else:
            found = view.latencies_with_remote_prefill(sequence, prompt, at)
        ttft_us, e2e_us, itl_us, _, num_tokens = found
        if ttft_us != NEVER:
            ttft_us += tracked.first_wait_us
        if e2e_us != NEVER:
            e2e_us += tracked.last_wait_us
            itl_us += (tracked.last_wait_us - tracked.first_wait_us) / max(num_tokens - 1, 1)
        return ttft_us, e2e_us, itl_us, num_tokens

    def _scheduled_at(self, sequence: Sequence) -> Micros | None:
        tracked = self._tracked(sequence)
        if sequence.prompt_part is not None and (part := self._requests.get(sequence.prompt_part)) is not None:
            return part.scheduled_at
        return tracked.scheduled_at

    def _executed_us(self, sequence: Sequence) -> Micros:
        """Return the time of all batches that computed a request."""
        total = 0
        for each in (sequence, sequence.prompt_part):
            tracked = None if each is None else self._requests.get(each)
            if each is None or tracked is None:
                continue
            total += tracked.executed_us
            if each.instance == NOWHERE or self._engines[each.instance].config.pipeline is not None:
                continue
            run_time = self._engines[each.instance].steps.run_time
            for runs in (each.token_runs, *(runs for _, runs in each.superseded_runs)):
                total += sum(run_time(first, count) for first, count in runs)
        return total

    def _transfer(self, sequence: Sequence) -> KVTransfer | None:
        prompt, traffic = sequence.prompt_part, self._traffic
        if prompt is None or traffic is None or sequence.queued_at is None:
            return None
        tracked = self._requests.get(prompt)
        if tracked is None or not tracked.prompt_end_us:
            return None
        num_blocks = self._engines[sequence.instance].config.num_prompt_blocks(sequence.request.input_tokens)
        size_bytes = num_blocks * traffic.bytes_per_block
        duration_us = max(1, sequence.queued_at - tracked.prompt_end_us)
        return KVTransfer(
            size_bytes=size_bytes,
            duration_s=duration_us / 1e6,
            bytes_per_s=size_bytes / duration_us * 1e6,
            bytes_per_value=traffic.bytes_per_value,
            dtype=traffic.dtype,
        )

    def _tracked(self, sequence: Sequence) -> TrackedRequest:
        """Return the life of a request; that of a part begins when it is first seen."""
        tracked = self._requests.get(sequence)
        if tracked is None:
            from blis_sim.engine.cluster.disaggregation import PROMPT_SUFFIX  # few runs have parts

            whole = self._parts[sequence.request.id.removesuffix(PROMPT_SUFFIX)]
            tracked = self._requests[sequence] = TrackedRequest(self._requests[whole].number)
        return tracked

    def _store_latest(self, sequence: Sequence) -> None:
        """Store the facts of the latest batches with a request and its prefill sub-request."""
        for each in (sequence, sequence.prompt_part):
            tracked = None if each is None else self._requests.get(each)
            if each is not None and tracked is not None and tracked.group is not None:
                tracked.group.leave(each, tracked)

    def _group(self, instance: int) -> DecodeGroup:
        group = self._groups.get(instance)
        if group is None:
            engine = self._engines[instance]
            counts_time = engine.config.pipeline is not None
            group = self._groups[instance] = DecodeGroup(engine.latency, counts_time=counts_time)
        return group

    def _view(self, instance: int) -> ClientView:
        view = self._views.get(instance)
        if view is None:
            view = self._views[instance] = ClientView(self._engines[instance])
        return view


# How full, busy and well used instances were.

_POINTS = 512
"""Points of a course in a picture."""


class Course:
    """A piecewise constant figure, 0 at first, and its changes."""

    __slots__ = ("_instants", "_values", "at", "largest")

    def __init__(self) -> None:
        self.at: Micros = 0
        """The latest instant at which it was set."""
        self.largest = 0.0
        self._instants, self._values = array("q", (0,)), array("d", (0.0,))

    def set(self, value: float, at: Micros) -> None:
        """Set the figure to `value` from `at` on, which is not before the latest change."""
        self.at = at
        if value > self.largest:
            self.largest = value
        if at == self._instants[-1]:
            self._values[-1] = value
        elif value != self._values[-1]:
            self._instants.append(at)
            self._values.append(value)

    def add_interval(self, value: float, start: Micros, end: Micros) -> None:
        """Set the figure to `value` between two instants, and to 0 before and after them."""
        if start < self.at:
            start = self.at
        if end > start:
            self.set(value, start)
            self.set(0.0, end)

    def means(self, edges: Floats) -> Floats:
        """Return the means over time between ascending instants."""
        instants, values = np.asarray(self._instants), np.asarray(self._values)
        sums = np.concatenate(([0.0], np.cumsum(values[:-1] * np.diff(instants))))
        at_edges = np.interp(edges, instants, sums) + values[-1] * np.maximum(edges - instants[-1], 0.0)
        found: Floats = np.diff(at_edges) / np.diff(edges)
        return found

    def mean(self, until: Micros) -> float:
        """Return the mean over time from 0 to `until`."""
        return float(self.means(np.array((0.0, until)))[0]) if until else 0.0

    def time_series(self, until: Micros) -> tuple[Floats, Floats]:
        """Return the middle of each stretch of time in seconds, and the mean value in it."""
        edges = np.linspace(0.0, max(until, 1), _POINTS + 1)
        return (edges[1:] + edges[:-1]) / 2e6, self.means(edges)


@dataclass(slots=True)
class StageUse:
    """One pipeline stage of an instance."""

    busy: Course = field(default_factory=Course)
    mfu: Course = field(default_factory=Course)

    def computes(self, started_at: Micros, ended_at: Micros, mfu_percent: float) -> None:
        """Count a batch that was in the stage between two instants."""
        self.busy.add_interval(100.0, started_at, ended_at)
        self.mfu.add_interval(mfu_percent, started_at, ended_at)


@dataclass(slots=True)
class ReplicaUse:
    """One instance."""

    memory: Course
    stages: list[StageUse]

    @classmethod
    def of_stages(cls, num_stages: int) -> "ReplicaUse":
        """Return the use of an idle instance."""
        return cls(Course(), [StageUse() for _ in range(num_stages)])


def utilization(replicas: dict[int, ReplicaUse], until: Micros) -> dict[str, float]:
    """Return the figures of utilization.json; keys are Vidur's, and replica 0 is the first one."""
    found: dict[str, float] = {}
    for number, replica in sorted(replicas.items()):
        levels = {f"replica_{number}_memory_usage": replica.memory}
        for stage, use in enumerate(replica.stages):
            levels[f"replica_{number}_stage_{stage}_busy_time_percent"] = use.busy
            levels[f"replica_{number}_stage_{stage}_mfu"] = use.mfu
        for name, level in levels.items():
            found |= {
                f"{name}_min": 0.0,
                f"{name}_max": level.largest,
                f"{name}_weighted_mean": level.mean(until),
            }
    return found


# Writer of the folder of metrics of a run: each event is written when it happens.

BATCH_COLUMNS = (
    "Batch Id",
    "batch_num_tokens",
    "batch_num_prefill_tokens",
    "batch_num_decode_tokens",
    "batch_size",
    "batch_execution_time",
    "replica_id",
    "started_at",
)
"""The six columns of Vidur, and two for the place and the time."""

PeakTime = Callable[[BatchShape], float]
"""Takes the batch of a step and returns the microseconds that its arithmetic takes at the peak rate of the GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetadata:
    """Facts of a run in the files that its events do not have."""

    config: Mapping[str, Any]
    peak_times: SequenceOf[PeakTime | None] = ()
    """Peak times by instance; None where the sizes of the model do not allow them."""
    traffic: KVTraffic | None = None
    """How prompts travel between instances; None where none does."""


class Recorder:
    """Writes the folder of one run. Each event comes with the number of its instance."""

    def __init__(self, folder: Path, facts: RunMetadata, engines: SequenceOf[Engine]) -> None:
        self.folder = folder
        self.requests = {name: array("d") for name in ("ttft", "e2e", "tbt", "delay")}
        """Seconds of each request that has the figure."""
        self.batches = {name: array("d") for name in ("ended_us", "tokens", "prompt_tokens", "size", "seconds")}
        """Columns of all batches, in the order of their ends."""
        self.replicas: dict[int, ReplicaUse] = {}
        self._facts = facts
        self._engines = engines
        self._stack = ExitStack()
        self._tracker = RequestTracker(engines, facts.traffic)
        write_config(folder, facts.config)
        self._request_rows = csv_writer(self._open("request_metrics.csv"), REQUEST_COLUMNS)
        self._batch_rows = csv_writer(self._open("batch_metrics.csv"), BATCH_COLUMNS)
        self._chrome = ChromeTrace(self._open("chrome_trace.json"))
        self._events = EventTrace(self._open("event_trace.json"))
        names = self._engines[0].latency.operation_names
        self._operations = csv_writer(self._open("operation_metrics.csv"), ("Batch Id", *names)) if names else None
        self._num_batches = 0

    def arrived(self, sequences: Iterable[Sequence]) -> None:
        """Requests have been handed to the simulation, in order of arrival."""
        for sequence in sequences:
            self._events.add_arrival(sequence.arrived_at, self._tracker.begin(sequence))

    def note(self, instance: int, event: Event) -> None:
        """Write the facts of an event."""
        if isinstance(event, BatchDone):
            self._batch(instance, event)
        elif isinstance(event, StepDone):
            self._tracker.emitted(instance, len(event.emitted))
        elif isinstance(event, Finished):
            self._end(event.sequence, event.at, event.outcome)
        elif isinstance(event, Scheduled | Preempted):
            is_scheduled = isinstance(event, Scheduled)
            number = self._tracker.number(event.sequence)
            if is_scheduled:
                self._tracker.scheduled(event.sequence, event.at)
            name = "request_scheduled" if is_scheduled else "request_preempted"
            self._events.add_event(event.at, name, request_id=number, replica_id=instance)

    def close(self, until: Micros) -> dict[str, float]:
        """Write the requests that have not ended, and the rest of all files. Returns the utilization."""
        for sequence in self._tracker.unfinished():
            self._request_rows.writerow(request_row(self._tracker.facts(sequence, until, None)).values())
        self._events.end(until)
        self._chrome.end()
        self._stack.close()
        found = utilization(self.replicas, until)
        write_content(self.folder / "utilization.json", orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
        return found

    def abandon(self) -> None:
        """Close all files of a run that has failed."""
        self._stack.close()

    def _open(self, name: str) -> RowFile:
        return self._stack.enter_context(RowFile(self.folder / name))

    def _batch(self, instance: int, event: BatchDone) -> None:
        number, shape = self._num_batches, event.shape
        self._num_batches += 1
        stages = event.stages or ((event.started_at, event.at),)
        size, decodes = shape.num_requests, shape.num_tokens - shape.prefill_tokens
        duration_s = (event.at - event.started_at) / 1e6
        started_s = event.started_at / 1e6
        prefills = shape.prefill_tokens
        self._batch_rows.writerow((number, shape.num_tokens, prefills, decodes, size, duration_s, instance, started_s))
        cells = (event.at, shape.num_tokens, prefills, size, duration_s)
        for column, cell in zip(self.batches.values(), cells, strict=True):
            column.append(cell)
        drawn = self._chrome.without_overlap(instance, stages)
        ids = self._tracker.computed(Place(instance, drawn[0][0]), event, sum(end - start for start, end in stages))
        num_ids = len(event.prompts) + len(event.decoding)
        self._chrome.batch(instance, number, drawn, ids, num_ids, (size, prefills, decodes))
        details = {"batch_id": number, "replica_id": instance, "started_at": started_s, "batch_size": size}
        self._events.add_event(event.at, "batch_end", **details)
        self._use(instance, event, stages)
        if self._operations is not None:
            latency = self._engines[instance].latency
            if latency.operation_names:
                self._operations.writerow((number, *latency.operation_times_ms(shape)))

    def _use(self, instance: int, event: BatchDone, stages: SequenceOf[tuple[Micros, Micros]]) -> None:
        use = self.replicas.get(instance)
        if use is None:
            use = self.replicas[instance] = ReplicaUse.of_stages(len(stages))
        peaks, mfu = self._facts.peak_times, 0.0
        peak_time = peaks[instance] if instance < len(peaks) else None
        if peak_time is not None:
            mfu = 100.0 * peak_time(event.shape) / max(1, sum(end - start for start, end in stages))
        for stage, (start, end) in zip(use.stages, stages, strict=True):
            stage.computes(start, end, mfu)
        blocks = self._engines[instance].kv.num_blocks / 100.0
        memory = use.memory
        memory.set(event.num_used_blocks / blocks, max(memory.at, event.started_at))
        if event.num_blocks_after != event.num_used_blocks:
            memory.set(event.num_blocks_after / blocks, max(memory.at, event.at))

    def _end(self, sequence: Sequence, at: Micros, outcome: object) -> None:
        tracker = self._tracker
        number = tracker.number(sequence)
        self._events.add_event(at, "request_end", request_id=number, replica_id=sequence.instance, outcome=str(outcome))
        self._chrome.request(number, tracker.phases(sequence, at), tracker.way(sequence))
        facts = tracker.facts(sequence, at, at)
        self._request_rows.writerow(request_row(facts).values())
        tracker.end(sequence)
        instants = {"delay": facts.scheduled_at_s, "ttft": facts.first_token_at_s, "e2e": facts.completed_at_s}
        for name, instant in instants.items():
            if instant is not None:
                self.requests[name].append(max(0.0, instant - facts.arrived_at_s))
        if facts.completed_at_s is not None and facts.output_tokens > 1:
            self.requests["tbt"].append(facts.itl_mean_s or 0.0)


_DTYPES = {0.5: "fp4", 1.0: "fp8", 2.0: "float16", 4.0: "float32"}


def run_metadata(
    options: Any,
    cluster: ClusterOptions,
    deployment: Deployment,
    simulation: "Engine | RankGroup | Cluster",
    command: str,
) -> RunMetadata:
    """Return the facts of a run with these options of its command."""
    gpu, model = deployment.gpu, deployment.model
    config = {
        "command": command,
        "options": plain(options),
        "deployment": {
            "latency_model": deployment.latency_name,
            "tensor_parallel_size": deployment.tp,
            "model": {name: value for name, value in plain(model).items() if name != "checkpoint"},
            "gpu": plain(gpu),
            "engine": plain(deployment.config),
        },
    }
    if deployment.has_own_ranks and len(simulation.instances) == deployment.dp:
        peak_times = [peak_time(replace(deployment, dp=1))] * deployment.dp
    else:
        peak_times = [peak_time(each) for each in deployments_of(cluster, deployment)]
    return RunMetadata(config=config, peak_times=peak_times, traffic=kv_traffic(simulation, deployment))


def peak_time(deployment: Deployment) -> PeakTime | None:
    """Return the arithmetic of a step at the peak rate of the GPUs; None where the model's sizes do not allow it.

    A new token attends to all tokens before it.
    """
    try:
        head_size = deployment.model.attention_head_size
        sizes = deployment.model, deployment.gpu, deployment.tp, deployment.dp
        work = step_work(*sizes, MOE_COMM_BACKENDS[0], head_size=head_size)
    except EngineError:
        return None
    pair_us, token_us = work.attention_pair_us, work.token_compute(1)

    def time_us(shape: BatchShape) -> float:
        pairs = shape.prefill_context_work + shape.prefill_tokens_squared / 2 + shape.decode_context_tokens
        return token_us * shape.num_tokens + pair_us * pairs

    return time_us


def kv_traffic(simulation: "Engine | RankGroup | Cluster", deployment: Deployment) -> KVTraffic | None:
    disaggregation = disaggregation_of(simulation)
    if disaggregation is None:
        return None
    model = deployment.model
    width = model.bytes_per_kv_element or model.bytes_per_activation
    return KVTraffic(
        bytes_per_block=disaggregation.network.bytes_per_block,
        bytes_per_value=width,
        dtype=_DTYPES.get(width, f"{width:g} bytes"),
    )


# The graph of each request's tasks as node-link JSON: prompt, transfer of its KV cache, tokens.

PROMPT, FLOW, TOKENS = "PromptTask", "KVCacheTransferFlow", "TokenTask"
"""The kinds of tasks, with the names of SimAI's scheduler."""
_KINDS = {"prefill": PROMPT, "KV transfer": FLOW, "decode": TOKENS}


class RequestGraphs:
    """Writes a JSON array with a graph for each request, when it ends; `networkx.node_link_graph` reads each.

    A prompt and its tokens on one instance are a chain; between two instances lies the transfer of the KV cache. Times
    are seconds on the engine's clock, sizes are bytes.
    """

    def __init__(self, path: Path, traffic: KVTraffic | None, engines: SequenceOf[Engine]) -> None:
        """Raises TraceError when the file cannot be written."""
        self._file = RowFile(path)
        self._items = JsonItems(self._file)
        self._tracker = RequestTracker(engines, traffic)

    def arrived(self, sequences: Iterable[Sequence]) -> None:
        """Requests have been handed to the simulation, in order of arrival."""
        for sequence in sequences:
            self._tracker.begin(sequence)

    def note(self, instance: int, event: Event) -> None:
        """Take the facts of an event, and write the graph of a request that ends."""
        if isinstance(event, BatchDone):
            self._tracker.computed(Place(instance, event.started_at), event, event.at - event.started_at)
        elif isinstance(event, Scheduled):
            self._tracker.scheduled(event.sequence, event.at)
        elif isinstance(event, Preempted):
            self._tracker.number(event.sequence)
        elif isinstance(event, Finished):
            self._items.add(self._graph(event.sequence, event.at, event.outcome))
            self._tracker.end(event.sequence)

    def close(self, until: Micros) -> None:
        """Write the graphs of requests that have not ended, and close the array."""
        for sequence in self._tracker.unfinished():
            self._items.add(self._graph(sequence, until, None))
        self._items.end()
        self._file.close()

    def abandon(self) -> None:
        """Close the file of a run that has failed."""
        self._file.close()

    def _graph(self, sequence: Sequence, at: Micros, outcome: Outcome | None) -> dict[str, Any]:
        facts = self._tracker.facts(sequence, at, None if outcome is None else at)
        nodes = _nodes(sequence, facts, self._tracker.phases(sequence, at), outcome)
        kind = "chain" if len(nodes) == 2 else "flow"
        return {
            "directed": True,
            "multigraph": False,
            "graph": {
                "request_id": facts.number,
                "arrived_at": facts.arrived_at_s,
                "num_prefill_tokens": facts.prompt_tokens,
                "num_decode_tokens": facts.output_tokens,
                "num_restarts": facts.num_restarts,
                "outcome": "unfinished" if outcome is None else str(outcome),
            },
            "nodes": nodes,
            "links": [{"source": number, "target": number + 1, "type": kind} for number in range(len(nodes) - 1)],
        }


def _nodes(
    sequence: Sequence, facts: RequestMetrics, phases: list[tuple[str, Micros, Micros]], outcome: Outcome | None
) -> list[dict[str, Any]]:
    """Return the tasks of a request in their order, with states and durations as far as the request has come."""
    is_split = sequence.prompt_part is not None
    instances = {PROMPT: facts.prefill_replica, TOKENS: facts.decode_replica} if is_split else {}
    spans = {_KINDS[name]: (start, end) for name, start, end in phases if name in _KINDS}
    last = next(reversed(spans), None)
    nodes: list[dict[str, Any]] = []
    for kind in (PROMPT, FLOW, TOKENS) if is_split else (PROMPT, TOKENS):
        if kind == TOKENS and facts.output_tokens <= 1 and not is_split:
            continue
        node: dict[str, Any] = {"id": len(nodes), "type": kind, "state": _state(kind, spans, last, outcome)}
        if kind == FLOW:
            node |= {"src": facts.prefill_replica, "dest": facts.decode_replica}
            if facts.transfer is not None:
                node |= {"size": facts.transfer.size_bytes, "bandwidth": facts.transfer.bytes_per_s}
        else:
            node["replica_id"] = instances.get(kind, sequence.instance if sequence.instance >= 0 else None)
            tokens = facts.prompt_tokens if kind == PROMPT else max(0, facts.output_tokens - 1)
            node["prompt_size" if kind == PROMPT else "token_size"] = tokens
        if kind in spans:
            start, end = spans[kind]
            is_over = kind != last or outcome in COMPLETED
            node |= {"started_at": start / 1e6, "completed_at": end / 1e6 if is_over else None}
            node["duration"] = (end - start) / 1e6
        nodes.append(node)
    return nodes


def _state(kind: str, spans: dict[str, tuple[Micros, Micros]], last: str | None, outcome: Outcome | None) -> str:
    """Return the state of a task, in the words of SimAI's scheduler."""
    if outcome in COMPLETED or (kind in spans and kind != last):
        return "completed"
    is_current = kind == last or (last is None and kind == PROMPT)
    if not is_current:
        return "none"
    if outcome is not None:
        return "aborted"
    return "queued" if last is None else "running"
