"""The seam between the weighted router and its scorers: how good each candidate is from one side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request

Scores: TypeAlias = Sequence[float]
"""Of all candidates, in their order, between 0 and 1: the larger the better."""


def never(_request: Request) -> bool:
    """Scores are worked out for each request."""
    return False


def always(_request: Request) -> bool:
    """Scores only change with what instances report."""
    return True


def without_shared_blocks(request: Request) -> bool:
    """Scores are the same for all requests of whose prompts no cache can hold anything."""
    return not request.blocks.num_shareable


def keeps_nothing_in_mind(_request: Request, _instance: int, _state: RoutingState) -> None:
    """Where a request was sent does not matter."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """`score` looks from one side; `routed` is told where each request was sent in the end, by its number."""

    score: Callable[[Request, RoutingState], Scores]
    routed: Callable[[Request, int, RoutingState], None] = keeps_nothing_in_mind
    reads_in_flight: bool = True
    """Whether what is in flight matters; else the instances are asked less often."""
    reads_caches: bool = False
    """Whether what KV caches hold matters."""
    reads_adapters: bool = False
    """Whether it matters which LoRA adapters instances use."""
    holds: Callable[[Request], bool] = never
    """Whether the scores for this request are those for any other of which this is so, until there is news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerSettings:
    """What scorers are made from."""

    block_size_tokens: int = 16
    """Tokens per block that the router tells prompts apart by."""


def from_least_to_most(values: Sequence[float]) -> Scores:
    """0 for the least, 1 for the most, in between by proportion; 1 for all when they are the same."""
    least, most = min(values), max(values)
    if least == most:
        return [1.0] * len(values)
    return [(value - least) / (most - least) for value in values]


def from_most_to_least(values: Sequence[float]) -> Scores:
    """1 for the least, 0 for the most, in between by proportion; 1 for all when they are the same."""
    least, most = min(values), max(values)
    if least == most:
        return [1.0] * len(values)
    return [(most - value) / (most - least) for value in values]
