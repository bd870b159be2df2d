"""Run arrivals through an engine or a cluster until it is drained or the horizon is reached."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from blis_options import OptionError
from engine.config import EngineConfig
from engine.core import Engine
from engine.events import Finished
from engine.guards import refusal
from engine.request import Request
from engine.simulation import Simulation
from engine.units import Micros
from engine.virtual import run_virtual
from replay.arrivals import Arrival
from replay.collector import no_cycle_search
from replay.record import OnTokens, Record


@dataclass(frozen=True, slots=True)
class Simulated:
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
    unlimited = [config for config in configs if config.scheduling == "blis" and not config.max_model_len]
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

    def submitted() -> Iterator[tuple[Micros, Request]]:
        for arrival in arrivals:
            if horizon_us is not None and arrival.at > horizon_us:
                return
            record.arrived(arrival)
            yield arrival.at, arrival.request

    for event in run_virtual(simulation, submitted(), horizon_us):
        record.note(event)
        if on_finished is not None and isinstance(event, Finished):
            on_finished()
    record.close()
    return Simulated(simulation, record)
