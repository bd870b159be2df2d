"""Which replica a request goes to, as Vidur's global schedulers choose."""

from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Protocol

from blis_sim.bench.vidur.replica import TimedJob


class Load(Protocol):
    """A replica as a router sees it."""

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_outstanding(self) -> int: ...


Choose = Callable[[TimedJob], int]

LOOKS_AT_REPLICAS = ("lor",)
"""Routers that look at replicas, which must stand at the instant of the request then."""


def router(name: str, replicas: Sequence[Load], draws: Random, *, is_original: bool) -> Choose:
    """Return what chooses a replica for each request, in the order in which they arrive."""
    number = len(replicas)
    if name == "random":
        return lambda _: draws.randint(1, number) - 1
    if name == "lor":
        return lambda _: min(range(number), key=[_load(each, is_original) for each in replicas].__getitem__)
    turns = count()
    return lambda _: next(turns) % number


def _load(replica: Load, is_original: bool) -> int:
    """Return the load by which replicas are compared. The original counts only requests that have not begun."""
    return replica.num_waiting if is_original else replica.num_outstanding
