"""Which tenant's turn it is, among requests of equal importance. A new policy is two functions and one row."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DEFAULT_TENANT = "default"
"""Whose requests name no tenant."""


@dataclass(frozen=True, slots=True)
class Fairness:
    """Requests of one flow stay in the dispatch order; flows take turns."""

    flow_of: Callable[[str], str]
    """From a tenant to its flow."""
    next_flow: Callable[[Sequence[str], str], str]
    """From the flows with requests, ascending, and the one whose turn was the latest, to whose turn it is."""


def all_in_one(_tenant: str) -> str:
    """Everybody is in the same flow."""
    return ""


def by_tenant(tenant: str) -> str:
    """Each tenant has a flow of its own."""
    return tenant or DEFAULT_TENANT


def the_first(flows: Sequence[str], _latest: str) -> str:
    return flows[0]


def the_next(flows: Sequence[str], latest: str) -> str:
    """The first flow after `latest`, and after the last one the first again."""
    return flows[bisect_right(flows, latest) % len(flows)]


FAIRNESS: dict[str, Fairness] = {
    "global-strict": Fairness(all_in_one, the_first),
    "round-robin": Fairness(by_tenant, the_next),
}
"""Name to policy."""
