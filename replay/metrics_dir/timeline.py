"""chrome_trace.json, for Perfetto and chrome://tracing, and event_trace.json, with every event in order of time.

Format: the JSON object format of "Trace Event Format". A process is an instance, a thread a pipeline stage. A slice
(X) is a batch in a stage; flows (s, t, f) lead from a request's first batch over that of its first token to its last;
and nested asynchronous events (b, e) of the category `request` show when a request waited, was prefilled and decoded.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from blis_sim.engine.units import Micros
from replay.metrics_dir.tables import JsonItems, RowFile

FIRST_THREAD = 1
"""The thread of the first stage; Perfetto takes thread 0 for the one whose number is that of its process."""
MOST_IDS = 64
"""Most request ids that a batch lists; a batch of more has their number."""


class Place(NamedTuple):
    """The beginning of a batch in the first stage of an instance."""

    replica: int
    at: Micros


class ChromeTrace:
    """The events of one run, written as they come."""

    def __init__(self, file: RowFile) -> None:
        self._items = JsonItems(file, '{"displayTimeUnit":"ms","traceEvents":[', "]}\n")
        self._declared: set[int] = set()
        self._free_at: dict[int, list[Micros]] = {}
        """When the latest batch left each stage, by instance."""

    def without_overlap(self, replica: int, stages: Sequence[tuple[Micros, Micros]]) -> list[tuple[Micros, Micros]]:
        """Return when a batch is in each stage, without the time in which the one before is still drawn there.

        BLIS begins a step before the end of one that completed everything, and slices of a thread must not overlap.
        """
        free_at = self._free_at.setdefault(replica, [0] * len(stages))
        drawn = [(max(start, free), max(end, free)) for (start, end), free in zip(stages, free_at, strict=True)]
        self._free_at[replica] = [end for _, end in drawn]
        return drawn

    def batch(
        self,
        replica: int,
        number: int,
        stages: Sequence[tuple[Micros, Micros]],
        ids: Sequence[int],
        num_ids: int,
        sizes: tuple[int, int, int],
        tokens: Sequence[int] = (),
    ) -> None:
        """Draw a batch that was in each stage between two instants.

        `ids` are the first of `num_ids`; `sizes` are its requests, prompt tokens and decode tokens; `tokens` are those
        of each request, where they are known.
        """
        if replica not in self._declared:
            self._declare(replica, len(stages))
        num_requests, num_prefill_tokens, num_decode_tokens = sizes
        args: dict[str, object] = {
            "batch_id": number,
            "batch_size": num_requests,
            "num_prefill_tokens": num_prefill_tokens,
            "num_decode_tokens": num_decode_tokens,
            "request_ids": ids[:MOST_IDS],
        }
        if tokens:
            args["num_tokens"] = tokens[:MOST_IDS]
        if num_ids > MOST_IDS:
            args["num_more_requests"] = num_ids - MOST_IDS
        kind = "mixed" if num_prefill_tokens and num_decode_tokens else "prefill" if num_prefill_tokens else "decode"
        for stage, (start, end) in enumerate(stages):
            self._items.add(
                {
                    "name": f"{kind} {num_requests}",
                    "cat": "batch",
                    "ph": "X",
                    "ts": start,
                    "dur": end - start,
                    "pid": replica,
                    "tid": FIRST_THREAD + stage,
                    "args": args,
                }
            )

    def request(self, number: int, phases: Sequence[tuple[str, Micros, Micros]], way: Sequence[Place]) -> None:
        """Draw a request: its phases with their beginnings and ends, and the batches to connect."""
        if not phases or not way:
            return
        pid = way[0].replica
        common = {"cat": "request", "id": number, "pid": pid, "tid": FIRST_THREAD}
        name = f"request {number}"
        self._items.add({"name": name, "ph": "b", "ts": phases[0][1], **common})
        for phase, start, end in phases:
            self._items.add({"name": phase, "ph": "b", "ts": start, **common})
            self._items.add({"name": phase, "ph": "e", "ts": end, **common})
        self._items.add({"name": name, "ph": "e", "ts": phases[-1][2], **common})
        places = sorted(set(way), key=_instant)
        if len(places) < 2:
            return
        for index, place in enumerate(places):
            last = index == len(places) - 1
            kind = "s" if not index else "f" if last else "t"
            flow = {"name": "request", "cat": "flow", "id": number, "pid": place.replica, "tid": FIRST_THREAD}
            self._items.add({**flow, "ts": place.at, "ph": kind, **({"bp": "e"} if last else {})})

    def end(self) -> None:
        """Close the file's array."""
        self._items.end()

    def _declare(self, replica: int, num_stages: int) -> None:
        """Name the process and the threads of an instance when it first computes."""
        self._declared.add(replica)
        names = [("process_name", 0, f"replica {replica}")]
        names += [("thread_name", FIRST_THREAD + stage, f"stage {stage}") for stage in range(num_stages)]
        for name, tid, text in names:
            self._items.add({"name": name, "ph": "M", "pid": replica, "tid": tid, "args": {"name": text}})


def _instant(place: Place) -> Micros:
    return place.at


class EventTrace:
    """The events of one run. Arrivals are known before their instants and wait for those of other events."""

    def __init__(self, file: RowFile) -> None:
        self._items = JsonItems(file)
        self._arrivals: deque[tuple[Micros, int]] = deque()

    def add_arrival(self, at: Micros, number: int) -> None:
        """Note an arrival, which is not before those noted so far."""
        self._arrivals.append((at, number))

    def add_event(self, at: Micros, event_type: str, **details: object) -> None:
        """Write an event, after the arrivals up to its instant."""
        self._write_arrivals(at)
        self._items.add({"time": at / 1e6, "event_type": event_type, **details})

    def end(self, until: Micros) -> None:
        """Write the arrivals up to the end of the run, and close the array."""
        self._write_arrivals(until)
        self._items.end()

    def _write_arrivals(self, until: Micros) -> None:
        arrivals = self._arrivals
        while arrivals and arrivals[0][0] <= until:
            at, number = arrivals.popleft()
            self._items.add({"time": at / 1e6, "event_type": "request_arrival", "request_id": number})
