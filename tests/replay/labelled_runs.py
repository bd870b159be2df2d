"""Finished runs, small or random, of requests with classes and tenants."""

from typing import Any

from hypothesis import strategies as st

from blis_sim.engine.core import Engine
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from replay.arrivals import Arrival
from replay.simulation.simulate import Simulated, simulate
from tests.fakes import TestLatency, config
from tests.replay.small_traces import row
from tests.strategies import workloads

HORIZON_US = 200_000
"""Some random engines preempt a request again and again; the run stops then."""


def ran(
    *arrivals: tuple[Micros, Request, dict[str, Any]], horizon_us: Micros | None = None, **settings: int | str
) -> Simulated:
    """A run of 1 ms steps. Each arrival has an instant, a request and the labels of its row."""
    engine = Engine(config(**settings), TestLatency(step_us=1_000))  # type: ignore[arg-type]
    given = [Arrival(at, request, row(number, at, **labels)) for number, (at, request, labels) in enumerate(arrivals)]
    return simulate(engine, given, horizon_us)


@st.composite
def labelled_runs(draw: st.DrawFn) -> Simulated:
    """Random engines, random requests, random labels: some of them completed, some refused, given up or cut off."""
    workload = draw(workloads(with_hang_ups=False))
    arrivals = [
        Arrival(
            at,
            request,
            row(
                number,
                at,
                slo_class=request.slo_class,
                tenant_id=draw(st.sampled_from(["", "a", "b", "c"])),
                model=draw(st.sampled_from(["", "m", "n"])),
                session_id=draw(st.sampled_from(["", "s", "t"])),
                round_index=draw(st.integers(0, 2)),
            ),
        )
        for number, (at, request) in enumerate(workload.arrivals)
    ]
    horizon_us = draw(st.sampled_from([5_000, HORIZON_US]))
    return simulate(workload.engine(), arrivals, horizon_us)
