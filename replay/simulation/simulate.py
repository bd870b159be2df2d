"""Run arrivals through an engine or a cluster until it is drained or the horizon is reached."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from blis_sim.engine.admission_checks import refusal
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.simulation import Simulation
from blis_sim.engine.units import Micros
from blis_sim.engine.virtual import Batch, batch_size, run_in_batches
from blis_sim.options import OptionError
from replay.arrivals.arrival import Arrival, Origin
from replay.simulation.record import OnTokens, Record
from traces.collector import no_cycle_search


class Simulated(NamedTuple):
    """A finished run: what was simulated as it stands at the end, and what became of each request that arrived."""

    simulation: Simulation
    requests: Record

    @property
    def engine(self) -> Engine:
        """The only engine of a run without a cluster."""
        (engine,) = self.simulation.instances
        return engine


def refuse_endless(configs: Iterable[EngineConfig], requests: Iterable[Request], horizon_us: Micros | None) -> None:
    """Raise OptionError for a run that would never end.

    With BLIS's scheduling a request whose prompt and output outgrow the whole KV cache preempts itself again and again,
    until its deadline or the horizon.
    """
    unlimited = [config for config in configs if config.engine == "blis" and not config.max_model_len]
    if horizon_us is not None or not unlimited:
        return
    for request in requests:
        for config in unlimited:
            _refuse_endless(request, config)


def configs_of(simulation: Simulation) -> list[EngineConfig]:
    """The limits within which instances schedule, each once."""
    return list({id(engine.config): engine.config for engine in simulation.instances}.values())


def _refuse_endless(request: Request, config: EngineConfig) -> None:
    served = refusal(config, request.input_tokens, request.max_output_tokens) is None
    outgrows = request.input_tokens + request.output_tokens - 1 > config.kv_capacity_tokens
    if served and outgrows and not request.deadline_us:
        raise OptionError(
            f"{request.id} needs {request.input_tokens} + {request.output_tokens} tokens, the KV cache holds "
            f"{config.kv_capacity_tokens}: it would be preempted forever; give --horizon or --max-model-len"
        )


@no_cycle_search()
def simulate(
    simulation: Simulation,
    arrivals: Iterable[Arrival],
    horizon_us: Micros | None = None,
    on_finished: Callable[[], None] | None = None,
    on_tokens: OnTokens | None = None,
) -> Simulated:
    """Feed `arrivals`, ascending, to a fresh simulation; they are iterated over more than once.

    `on_finished` is called once for each request that ends, `on_tokens` for each that completes. Raises OptionError for
    a run that would never end.
    """
    refuse_endless(configs_of(simulation), (arrival.request for arrival in arrivals), horizon_us)
    record = Record(simulation, on_tokens)

    rows: deque[Origin] = deque()

    def batches() -> Iterator[Batch]:
        source, size = iter(arrivals), batch_size(simulation)
        while batch := list(islice(source, size)):
            instants, requests, its_rows = zip(*batch, strict=True)
            rows.extend(its_rows)
            yield Batch(instants, requests)

    def submitted(sequences: list[Sequence]) -> None:
        record.arrived(sequences, [rows.popleft() for _ in sequences])

    for events in run_in_batches(simulation, batches(), horizon_us, submitted):
        ended = record.note(events)
        if on_finished is not None:
            for _ in ended:
                on_finished()
    record.close()
    return Simulated(simulation, record)
