"""ServeGen: a folder with the rates and lengths of many clients over a day, as cohorts of a spec.

Three periods of the day are taken, of each ten minutes; the clients that are active then are dealt to the service
classes, and each class becomes a cohort with the average of its clients' fits.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from blis_sim.options.addition import added_up
from traces.errors import TraceError
from traces.importers.imported import Imported
from traces.importers.servegen_chunk import Chunk, Fit, Moment, mean_fit, read_chunks
from traces.importers.settings import ConvertOptions
from traces.workload import Arrival, WorkloadSpec
from traces.workload.spec import Cohort, Distribution, Spike

PERIODS: Mapping[str, int] = {"midnight": 0, "morning": 8 * 3600, "afternoon": 14 * 3600}
"""When each period begins, in seconds of the day; it lasts half an hour."""
WINDOW_S = 600
_NUM_WINDOWS = 3
_CLASSES = ("critical", "standard", "batch", "sheddable", "background")

Deal = Mapping[str, Sequence[Sequence[tuple[Chunk, Moment]]]]
"""For each period the clients of each class, in the order of the classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """When the periods are in the converted workload, in seconds."""

    window_s: int
    drain_s: int


def convert(options: ConvertOptions) -> Imported:
    """The cohorts of the periods asked for. Raises TraceError."""
    left_out: Counter[str] = Counter()
    chunks = read_chunks(options.path, left_out)
    deal = dealt(chunks, Random(f"{options.seed}/servegen"), left_out)
    placement = Placement(window_s=options.window_duration_seconds, drain_s=options.drain_timeout_seconds)
    cohorts = cohorts_of(deal, placement)
    chosen = tuple(cohort for cohort in cohorts if options.time in (None, cohort.id.partition("-")[0]))
    if not chosen:
        raise TraceError(f"{options.path}: expected clients that are active in the chosen periods, got none")
    left_out["cohorts of other periods than --time"] = len(cohorts) - len(chosen)
    spec = WorkloadSpec(version="2", seed=options.seed, cohorts=chosen)
    return Imported(spec=spec, left_out=left_out)


def dealt(chunks: Sequence[Chunk], random: Random, left_out: Counter[str]) -> Deal:
    """One window of each period, its active clients shuffled and dealt to the classes in turn."""
    deal: dict[str, list[list[tuple[Chunk, Moment]]]] = {}
    used = 0
    for period, start_s in PERIODS.items():
        window_s = start_s + WINDOW_S * random.randrange(_NUM_WINDOWS)
        active = active_at(chunks, window_s)
        used += len(active)
        random.shuffle(active)
        deal[period] = [active[place :: len(_CLASSES)] for place in range(len(_CLASSES))]
    left_out["moments outside the three windows taken"] = sum(len(chunk.moments) for chunk in chunks) - used
    return deal


def active_at(chunks: Sequence[Chunk], window_s: int) -> list[tuple[Chunk, Moment]]:
    """The clients with requests in the window that begins then, with what they do."""
    return [
        (chunk, moment)
        for chunk in chunks
        for moment in chunk.moments
        if window_s <= moment.start_s < window_s + WINDOW_S and moment.rate > 0
    ]


def cohorts_of(deal: Deal, placement: Placement) -> list[Cohort]:
    """A cohort per period and class that has clients, by period and then by name."""
    cohorts = []
    for number, period in enumerate(PERIODS):
        start_us = number * (placement.window_s + placement.drain_s) * 1_000_000
        for slo_class, clients in sorted(zip(_CLASSES, deal[period], strict=True)):
            if clients:
                spike = Spike(
                    start_time_us=start_us,
                    duration_us=placement.window_s * 1_000_000,
                    trace_rate=added_up(moment.rate for _, moment in clients),
                )
                cohorts.append(_cohort(period, slo_class, clients, spike))
    return cohorts


def _cohort(period: str, slo_class: str, clients: Sequence[tuple[Chunk, Moment]], spike: Spike) -> Cohort:
    lengths = [chunk.lengths_at(moment.start_s) for chunk, moment in clients]
    return Cohort(
        id=f"{period}-{slo_class}",
        population=len(clients),
        slo_class=slo_class,
        rate_fraction=1.0,
        arrival=_arrival([moment for _, moment in clients]),
        input_distribution=_lognormal(mean_fit([each.input for each in lengths])),
        output_distribution=_lognormal(mean_fit([each.output for each in lengths])),
        streaming=True,
        spike=spike,
    )


def _arrival(moments: Sequence[Moment]) -> Arrival:
    """The process that most of the clients have, with the averages of all; a draw goes to gamma."""
    num_weibull = sum(moment.process == "weibull" for moment in moments)
    return Arrival(
        process="weibull" if 2 * num_weibull > len(moments) else "gamma",
        cv=_mean([moment.cv for moment in moments]),
        shape=_mean([moment.shape for moment in moments]),
        scale=_mean([moment.scale_s * 1e6 for moment in moments]),
    )


def _lognormal(fit: Fit) -> Distribution:
    return Distribution(type="lognormal", params={"mu": fit.mu, "sigma": fit.sigma})


def _mean(values: Sequence[float]) -> float:
    return added_up(values) / len(values)
