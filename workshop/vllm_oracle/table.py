"""Compositions as rows of a table: what tests keep of vLLM's, to run without it."""

from collections.abc import Iterable, Iterator
from typing import Any

from workshop.vllm_oracle.workload import Reported, ScheduledStep


def composition_rows(num_stages: int, async_scheduling: bool, seed: int, lines: Iterable[Reported]) -> Iterator[str]:
    """Yield a row for each composition: stages, kind, seed, instant, tokens by request in batch order, preempted."""
    kind = "async" if async_scheduling else "sync"
    for line in lines:
        if isinstance(line, ScheduledStep):
            tokens = " ".join(f"{name}:{count}" for name, count in line.tokens)
            yield f"{num_stages},{kind},{seed},{line.at},{tokens},{' '.join(line.preempted)}"


def block_rows(kind: str, async_scheduling: bool, seed: int, lines: Iterable[Reported]) -> Iterator[str]:
    """Yield a row for each composition of a model with groups of layers.

    Kind of model, kind of scheduling, seed, instant, tokens by request, preempted, free blocks, tokens found.
    """
    scheduling = "async" if async_scheduling else "sync"
    for line in lines:
        if isinstance(line, ScheduledStep):
            tokens = " ".join(f"{name}:{count}" for name, count in line.tokens)
            preempted = " ".join(line.preempted)
            yield f"{kind},{scheduling},{seed},{line.at},{tokens},{preempted},{line.free_blocks},{line.hit_tokens}"


def content_rows(kind: str, async_scheduling: bool, seed: int, content: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """Yield a row for each change of what the prefix cache holds: kind of model, kind of scheduling, seed, change."""
    scheduling = "async" if async_scheduling else "sync"
    for change in content:
        yield f"{kind},{scheduling},{seed},{' '.join(map(str, change))}"
