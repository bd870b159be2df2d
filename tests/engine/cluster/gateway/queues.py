"""Gateway queues for the tests beside this."""

from blis_sim.engine.cluster.gateway.fairness import FAIRNESS
from blis_sim.engine.cluster.gateway.orders import DISPATCH_ORDERS
from blis_sim.engine.cluster.gateway.queue import Entry, GatewayQueue, QueueLimits
from blis_sim.engine.cluster.gateway.waiting import NO_DEADLINE
from blis_sim.engine.sequence import Sequence
from tests.fakes import request

CRITICAL, STANDARD, BATCH, SHEDDABLE = 4, 3, -1, -2


def queue(order: str = "priority", fairness: str = "global-strict", limits: QueueLimits | None = None) -> GatewayQueue:
    return GatewayQueue(limits or QueueLimits(), DISPATCH_ORDERS[order], FAIRNESS[fairness])


def enter(
    waiting_line: GatewayQueue,
    name: str,
    importance: int = STANDARD,
    tenant: str = "",
    at: int = 0,
    due_at: int = NO_DEADLINE,
) -> Entry:
    return waiting_line.enter(Sequence(request(name), at), importance, tenant, at, due_at)


def drain(waiting_line: GatewayQueue, saturation: float = 0.0) -> list[str]:
    """The ids of all that leave, in order."""
    left = []
    while (waiting := waiting_line.dispatch(saturation)) is not None:
        left.append(waiting.sequence.request.id)
    return left
