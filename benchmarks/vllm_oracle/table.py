"""Compositions as rows of a table: what tests keep of vLLM's, to run without it."""

from collections.abc import Iterable, Iterator

from benchmarks.vllm_oracle.workload import Composed, Told


def composition_rows(num_stages: int, async_scheduling: bool, seed: int, lines: Iterable[Told]) -> Iterator[str]:
    """Yield a row for each composition: stages, kind, seed, instant, tokens by request in batch order, preempted."""
    kind = "async" if async_scheduling else "sync"
    for line in lines:
        if isinstance(line, Composed):
            tokens = " ".join(f"{name}:{count}" for name, count in line.tokens)
            yield f"{num_stages},{kind},{seed},{line.at},{tokens},{' '.join(line.preempted)}"
