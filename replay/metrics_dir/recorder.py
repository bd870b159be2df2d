"""Writer of the folder of metrics of a run: each event is written when it happens."""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.policies import deployments_of
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import BatchDone, Event, Finished, Preempted, Scheduled, StepDone
from blis_sim.engine.latency.step_work import MOE_COMM_BACKENDS, step_work
from blis_sim.engine.latency.wrapped import HasOperations, operations_of
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from replay.metrics_dir.figures import QuantileSketch, RateSeries, ReplicaUse, utilization
from replay.metrics_dir.lives import KVTraffic, RequestTracker
from replay.metrics_dir.tables import REQUEST_COLUMNS, CsvTable, RowFile, plain, request_row, write_config
from replay.metrics_dir.timeline import ChromeTrace, EventTrace, Place
from traces.text_file import write_content

if TYPE_CHECKING:
    from blis_sim.engine.cluster.cluster import Cluster
    from blis_sim.engine.ranks import RankGroup

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


@dataclass(slots=True)
class RunDistributions:
    """The distributions of a run, as its pictures show them: seconds, requests and tokens."""

    ttft: QuantileSketch
    e2e: QuantileSketch
    tbt: QuantileSketch
    delay: QuantileSketch
    batch_size: QuantileSketch
    batch_tokens: QuantileSketch
    batch_time: QuantileSketch


class Recorder:
    """Writes the folder of one run. Each event comes with the number of its instance."""

    def __init__(self, folder: Path, facts: RunMetadata, engines: SequenceOf[Engine]) -> None:
        self.folder = folder
        self.figures = RunDistributions(*(QuantileSketch() for _ in range(7)))
        self.prompt_tokens, self.decodes = RateSeries(), RateSeries()
        self.replicas: dict[int, ReplicaUse] = {}
        self._facts = facts
        self._engines = engines
        self._stack = ExitStack()
        self._tracker = RequestTracker(engines, facts.traffic)
        write_config(folder, facts.config)
        self._requests = CsvTable(self._open("request_metrics.csv"), REQUEST_COLUMNS)
        self._batches = CsvTable(self._open("batch_metrics.csv"), BATCH_COLUMNS)
        self._chrome = ChromeTrace(self._open("chrome_trace.json"))
        self._events = EventTrace(self._open("event_trace.json"))
        self._operations = self._operation_table()
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
            self._requests.add(request_row(self._tracker.facts(sequence, until, None)).values())
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

    def _operation_table(self) -> CsvTable | None:
        """Return the table of operations where the first instance's latency model has any."""
        model = operations_of(self._engines[0].latency)
        if model is None:
            return None
        return CsvTable(self._open("operation_metrics.csv"), ("Batch Id", *model.operation_names))

    def _batch(self, instance: int, event: BatchDone) -> None:
        number, shape = self._num_batches, event.shape
        self._num_batches += 1
        stages = event.stages or ((event.started_at, event.at),)
        size, decodes = shape.num_requests, shape.num_tokens - shape.prefill_tokens
        duration_s = (event.at - event.started_at) / 1e6
        started_s = event.started_at / 1e6
        prefills = shape.prefill_tokens
        self._batches.add_line(
            f"{number},{shape.num_tokens},{prefills},{decodes},{size},{duration_s!r},{instance},{started_s!r}\n"
        )
        figures = self.figures
        figures.batch_size.add(size)
        figures.batch_tokens.add(shape.num_tokens)
        figures.batch_time.add(duration_s)
        if prefills:
            self.prompt_tokens.add(event.at, prefills)
        self.decodes.add(event.at, decodes)
        drawn = self._chrome.without_overlap(instance, stages)
        ids = self._tracker.computed(Place(instance, drawn[0][0]), event, sum(end - start for start, end in stages))
        num_ids = len(event.prompts) + len(event.decoding)
        self._chrome.batch(instance, number, drawn, ids, num_ids, (size, prefills, decodes))
        details = {"batch_id": number, "replica_id": instance, "started_at": started_s, "batch_size": size}
        self._events.add_event(event.at, "batch_end", **details)
        self._use(instance, event, stages)
        if self._operations is not None:
            model = operations_of(self._engines[instance].latency)
            if isinstance(model, HasOperations):
                self._operations.add((number, *model.operation_times_ms(shape)))

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
        lives = self._tracker
        number = lives.number(sequence)
        self._events.add_event(at, "request_end", request_id=number, replica_id=sequence.instance, outcome=str(outcome))
        self._chrome.request(number, lives.phases(sequence, at), lives.way(sequence))
        facts = lives.facts(sequence, at, at)
        self._requests.add(request_row(facts).values())
        lives.end(sequence)
        self._sketch(facts.arrived_at_s, facts.scheduled_at_s, facts.first_token_at_s, facts.completed_at_s)
        if facts.completed_at_s is not None and facts.output_tokens > 1:
            self.figures.tbt.add(facts.itl_mean_s or 0.0)

    def _sketch(
        self, arrived_at: float, scheduled_at: float | None, first_at: float | None, completed_at: float | None
    ) -> None:
        figures = self.figures
        for sketch, instant in ((figures.delay, scheduled_at), (figures.ttft, first_at), (figures.e2e, completed_at)):
            if instant is not None:
                sketch.add(max(0.0, instant - arrived_at))


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
            "model": _without_checkpoint(plain(model)),
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
    disaggregation = getattr(simulation, "disaggregation", None)
    if disaggregation is None:
        return None
    model = deployment.model
    width = model.bytes_per_kv_element or model.bytes_per_activation
    return KVTraffic(
        bytes_per_block=disaggregation.network.bytes_per_block,
        bytes_per_value=width,
        dtype=_DTYPES.get(width, f"{width:g} bytes"),
    )


def _without_checkpoint(model: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in model.items() if name != "checkpoint"}
