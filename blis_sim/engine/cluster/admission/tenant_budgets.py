"""Admission with a share of all seats for each tenant, around any other policy."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from blis_sim.engine.cluster.admission.policy import AdmissionPolicy
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.cluster.unended import Unended
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.slo_classes import SloPriorities


@dataclass(frozen=True, slots=True)
class TenantBudgets:
    """Turns away sheddable requests of a tenant that has more requests in flight than its budget.

    `budgets` are shares of `num_seats`, those of all instances together; tenants without one have no limit. All others
    are as the inner policy says.
    """

    inner: AdmissionPolicy
    budgets: Mapping[str, float]
    num_seats: int
    priorities: SloPriorities
    reads_snapshots: bool = True
    in_flight: dict[str, Unended[Sequence]] = field(default_factory=dict)
    """Requests routed for each tenant with a budget; those that have ended are taken out when somebody counts."""

    def admits(self, request: Request, state: RoutingState) -> bool:
        if not self.inner.admits(request, state):
            return False
        budget = self.budgets.get(request.tenant)
        if budget is None or not self.priorities.is_sheddable(request.slo_class):
            return True
        return self._num_in_flight(request.tenant) <= budget * self.num_seats

    def routed(self, sequence: Sequence) -> None:
        """Count a request as its tenant's, until it ends."""
        tenant = sequence.request.tenant
        if tenant in self.budgets:
            if tenant not in self.in_flight:
                self.in_flight[tenant] = Unended(_has_ended)
            self.in_flight[tenant].append(sequence)
        if self.inner.routed is not None:
            self.inner.routed(sequence)

    def _num_in_flight(self, tenant: str) -> int:
        """Cost: O(requests of the tenant that have not been found to have ended)."""
        in_flight = self.in_flight.get(tenant)
        if in_flight is None:
            return 0
        in_flight.prune()
        return len(in_flight.entries)


def _has_ended(sequence: Sequence) -> bool:
    return sequence.outcome is not None
