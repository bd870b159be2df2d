"""The graph of each request's tasks as node-link JSON: prompt, transfer of its KV cache, tokens."""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

from blis_sim.engine.core import Engine
from blis_sim.engine.events import BatchDone, Event, Finished, Preempted, Scheduled
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros
from replay.metrics_dir.lives import KVTraffic, RequestTracker
from replay.metrics_dir.tables import JsonItems, RequestMetrics, RowFile
from replay.metrics_dir.timeline import Place
from replay.simulation.measure import COMPLETED

PROMPT, FLOW, TOKENS = "PromptTask", "KVCacheTransferFlow", "TokenTask"
"""The kinds of tasks, with the names of SimAI's scheduler."""
_KINDS = {"prefill": PROMPT, "KV transfer": FLOW, "decode": TOKENS}


class RequestGraphs:
    """Writes a JSON array with a graph for each request, when it ends; `networkx.node_link_graph` reads each.

    A prompt and its tokens on one instance are a chain; between two instances lies the transfer of the KV cache. Times
    are seconds on the engine's clock, sizes are bytes.
    """

    def __init__(self, path: Path, traffic: KVTraffic | None, engines: SequenceOf[Engine]) -> None:
        """Raises TraceError when the file cannot be written."""
        self._file = RowFile(path)
        self._items = JsonItems(self._file)
        self._tracker = RequestTracker(engines, traffic)

    def arrived(self, sequences: Iterable[Sequence]) -> None:
        """Requests have been handed to the simulation, in order of arrival."""
        for sequence in sequences:
            self._tracker.begin(sequence)

    def note(self, instance: int, event: Event) -> None:
        """Take the facts of an event, and write the graph of a request that ends."""
        if isinstance(event, BatchDone):
            self._tracker.computed(Place(instance, event.started_at), event, event.at - event.started_at)
        elif isinstance(event, Scheduled):
            self._tracker.scheduled(event.sequence, event.at)
        elif isinstance(event, Preempted):
            self._tracker.number(event.sequence)
        elif isinstance(event, Finished):
            self._items.add(self._graph(event.sequence, event.at, event.outcome))
            self._tracker.end(event.sequence)

    def close(self, until: Micros) -> None:
        """Write the graphs of requests that have not ended, and close the array."""
        for sequence in self._tracker.unfinished():
            self._items.add(self._graph(sequence, until, None))
        self._items.end()
        self._file.close()

    def abandon(self) -> None:
        """Close the file of a run that has failed."""
        self._file.close()

    def _graph(self, sequence: Sequence, at: Micros, outcome: Outcome | None) -> dict[str, Any]:
        facts = self._tracker.facts(sequence, at, None if outcome is None else at)
        nodes = _nodes(sequence, facts, self._tracker.phases(sequence, at), outcome)
        kind = "chain" if len(nodes) == 2 else "flow"
        return {
            "directed": True,
            "multigraph": False,
            "graph": {
                "request_id": facts.number,
                "arrived_at": facts.arrived_at_s,
                "num_prefill_tokens": facts.prompt_tokens,
                "num_decode_tokens": facts.output_tokens,
                "num_restarts": facts.num_restarts,
                "outcome": "unfinished" if outcome is None else str(outcome),
            },
            "nodes": nodes,
            "links": [{"source": number, "target": number + 1, "type": kind} for number in range(len(nodes) - 1)],
        }


def _nodes(
    sequence: Sequence, facts: RequestMetrics, phases: list[tuple[str, Micros, Micros]], outcome: Outcome | None
) -> list[dict[str, Any]]:
    """Return the tasks of a request in their order, with states and durations as far as the request has come."""
    is_split = sequence.prompt_part is not None
    instances = {PROMPT: facts.prefill_replica, TOKENS: facts.decode_replica} if is_split else {}
    spans = {_KINDS[name]: (start, end) for name, start, end in phases if name in _KINDS}
    last = next(reversed(spans), None)
    nodes: list[dict[str, Any]] = []
    for kind in (PROMPT, FLOW, TOKENS) if is_split else (PROMPT, TOKENS):
        if kind == TOKENS and facts.output_tokens <= 1 and not is_split:
            continue
        node: dict[str, Any] = {"id": len(nodes), "type": kind, "state": _state(kind, spans, last, outcome)}
        if kind == FLOW:
            node |= {"src": facts.prefill_replica, "dest": facts.decode_replica}
            if facts.transfer is not None:
                node |= {"size": facts.transfer.size_bytes, "bandwidth": facts.transfer.bytes_per_s}
        else:
            node["replica_id"] = instances.get(kind, sequence.instance if sequence.instance >= 0 else None)
            tokens = facts.prompt_tokens if kind == PROMPT else max(0, facts.output_tokens - 1)
            node["prompt_size" if kind == PROMPT else "token_size"] = tokens
        if kind in spans:
            start, end = spans[kind]
            is_over = kind != last or outcome in COMPLETED
            node |= {"started_at": start / 1e6, "completed_at": end / 1e6 if is_over else None}
            node["duration"] = (end - start) / 1e6
        nodes.append(node)
    return nodes


def _state(kind: str, spans: dict[str, tuple[Micros, Micros]], last: str | None, outcome: Outcome | None) -> str:
    """Return the state of a task, in the words of SimAI's scheduler."""
    if outcome in COMPLETED or (kind in spans and kind != last):
        return "completed"
    is_current = kind == last or (last is None and kind == PROMPT)
    if not is_current:
        return "none"
    if outcome is not None:
        return "aborted"
    return "queued" if last is None else "running"
