"""What the headers of a request say about whom it is from, beside what it asks for."""

from dataclasses import dataclass

from aiohttp import web
from multidict import istr

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from mockserve.connections.stamped import wanted_rank

CLASS_HEADER = istr("X-Gateway-Inference-Objective")
TENANT_HEADER = istr("X-Gateway-Inference-Fairness-Id")
TARGET_HEADER = istr("X-Slo-Ttft-Ms")
"""Names that gateways for inference read, and `blis observe` sends."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Nobody in particular unless told otherwise."""

    rank: int | None = None
    """The data-parallel rank, or instance, that is to answer; None leaves it to the server."""
    slo_class: str = ""
    tenant: str = ""
    slo_target_us: Micros = 0

    def named_in(self, request: Request) -> Request:
        """The request with what admission and scheduling may want to know of its caller."""
        if not (self.slo_class or self.tenant or self.slo_target_us):
            return request
        # A priority of 0 is what requests have that say nothing of it.
        priority = None if self.slo_class and not request.priority else request.priority
        return request._replace(
            slo_class=self.slo_class, tenant=self.tenant, slo_target_us=self.slo_target_us, priority=priority
        )


ANYBODY = Caller()


def caller_of(request: web.Request) -> Caller:
    """Who sent it. A target that is no number counts for none."""
    headers = request.headers
    rank, target_ms = wanted_rank(request), headers.get(TARGET_HEADER, "")
    slo_class, tenant = headers.get(CLASS_HEADER, ""), headers.get(TENANT_HEADER, "")
    if rank is None and not (target_ms or slo_class or tenant):
        return ANYBODY
    return Caller(
        rank=rank,
        slo_class=slo_class,
        tenant=tenant,
        slo_target_us=int(target_ms) * 1000 if target_ms.isascii() and target_ms.isdigit() else 0,
    )
