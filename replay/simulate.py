"""Run arrivals through one engine until it is drained or the horizon is reached."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from blis_options import OptionError
from engine.config import EngineConfig
from engine.core import Engine
from engine.events import Finished, Scheduled
from engine.guards import refusal
from engine.request import Request
from engine.sequence import Sequence
from engine.units import Micros
from engine.virtual import run_virtual
from replay.arrivals import Arrival


@dataclass(frozen=True, slots=True)
class Simulated:
    """A finished run: the engine as it stands at the end, and each arrival with what became of it.

    The sequence is None for a request that never got anywhere before the horizon.
    """

    engine: Engine
    requests: list[tuple[Arrival, Sequence | None]]


def refuse_endless(config: EngineConfig, requests: Iterable[Request], horizon_us: Micros | None) -> None:
    """Raise OptionError for a run that would never end.

    With BLIS's scheduling a request whose prompt and output outgrow the whole KV cache preempts itself again and again,
    until its deadline or the horizon.
    """
    if horizon_us is not None or config.scheduling != "blis" or config.max_model_len:
        return
    for request in requests:
        served = refusal(config, request.input_tokens, request.max_output_tokens) is None
        outgrows = request.input_tokens + request.output_tokens - 1 > config.kv_capacity_tokens
        if served and outgrows and not request.deadline_us:
            raise OptionError(
                f"{request.id} needs {request.input_tokens} + {request.output_tokens} tokens, the KV cache holds "
                f"{config.kv_capacity_tokens}: it would be preempted forever; give --horizon or --max-model-len"
            )


def simulate(
    engine: Engine,
    arrivals: list[Arrival],
    horizon_us: Micros | None = None,
    on_finished: Callable[[], None] | None = None,
) -> Simulated:
    """Feed `arrivals`, ascending, to a fresh engine. `on_finished` is called once for each request that ends.

    Raises OptionError for a run that would never end.
    """
    refuse_endless(engine.config, (arrival.request for arrival in arrivals), horizon_us)
    sequences: dict[str, Sequence] = {}
    for event in run_virtual(engine, ((arrival.at, arrival.request) for arrival in arrivals), horizon_us):
        if isinstance(event, Scheduled | Finished):
            sequences[event.sequence.request.id] = event.sequence
            if on_finished is not None and isinstance(event, Finished):
                on_finished()
    return Simulated(engine, [(arrival, sequences.get(arrival.request.id)) for arrival in arrivals])
