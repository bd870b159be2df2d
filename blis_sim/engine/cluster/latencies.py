"""How long a cluster takes to decide."""

from dataclasses import dataclass

from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """What decisions take, in microseconds."""

    admission_us: Micros = 0
    """From the arrival of a request until it is admitted or not."""
    routing_us: Micros = 0
    """From then until it is routed, which is when it comes to its instance."""
