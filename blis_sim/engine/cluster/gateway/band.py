"""The requests of equal importance that wait at the gateway."""

from bisect import bisect_left, insort
from heapq import heappop, heappush

from blis_sim.engine.cluster.gateway.fairness import Fairness
from blis_sim.engine.cluster.gateway.orders import DispatchOrder, Rank
from blis_sim.engine.cluster.gateway.waiting import Waiting


class Band:
    """One heap per flow. Who leaves from the middle is passed over when its turn comes. Cost: O(log waiting)."""

    __slots__ = ("_fairness", "_flows", "_heaps", "_latest", "_present", "_rank", "num_waiting")

    def __init__(self, order: DispatchOrder, fairness: Fairness) -> None:
        self.num_waiting = 0
        self._rank = order.rank
        self._fairness = fairness
        self._heaps: dict[str, list[tuple[Rank, Waiting]]] = {}
        self._present: dict[str, int] = {}
        """How many wait in each flow."""
        self._flows: list[str] = []
        """Flows in which somebody waits, ascending."""
        self._latest = ""
        """Whose turn it was."""

    def add(self, waiting: Waiting) -> None:
        flow = self._fairness.flow_of(waiting.tenant)
        heappush(self._heaps.setdefault(flow, []), (self._rank(waiting), waiting))
        before = self._present.get(flow, 0)
        self._present[flow] = before + 1
        self.num_waiting += 1
        if not before:
            insort(self._flows, flow)

    def pop(self) -> Waiting:
        """Take whose turn it is; somebody must wait."""
        self._latest = flow = self._fairness.next_flow(self._flows, self._latest)
        heap = self._heaps[flow]
        while True:
            _, waiting = heappop(heap)
            if not waiting.is_gone:
                self.leave(waiting)
                return waiting

    def leave(self, waiting: Waiting) -> None:
        """Somebody present leaves."""
        waiting.is_gone = True
        flow = self._fairness.flow_of(waiting.tenant)
        self.num_waiting -= 1
        self._present[flow] -= 1
        if not self._present[flow]:
            del self._present[flow], self._heaps[flow]
            del self._flows[bisect_left(self._flows, flow)]
