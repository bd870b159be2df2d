"""The outcome of every request of a run, in columns that are filled as requests end; no other state is kept."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blis_sim.engine.events import Event, Finished
from blis_sim.engine.sequence import NOWHERE, Outcome, Sequence
from blis_sim.engine.simulation import Simulation
from blis_sim.engine.units import Micros
from replay.arrivals import Origin
from replay.simulation.measure import (
    COMPLETED,
    COMPLETED_CODES,
    NEVER,
    NO_OUTCOME,
    OUTCOMES,
    ClientView,
    OutcomeColumns,
    outcome_columns,
    token_times,
)
from replay.simulation.tokens import OutputSerialization, TokenGaps
from traces import TraceRow

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
OnTokens = Callable[[int, Ints], None]
"""Takes a completed request's number and when its tokens reached the client, step by step, in microseconds."""

__all__ = ["NEVER", "Floats", "Ints", "OnTokens", "Record", "RequestRecord"]

REPORT_BATCH_SIZE = 1024
"""How many requests have ended before their latencies are worked out."""


class RequestRecord(NamedTuple):
    """One request that has arrived, with its latencies in microseconds; None for what never happened."""

    id: str
    number: int
    """The id of the request in results and traces."""
    row: Origin
    arrived_at: Micros
    input_tokens: int
    """Tokens of the whole prompt, shared prefixes included."""
    planned_output_tokens: int
    outcome: Outcome | None
    """None for a request that had not ended at the horizon."""
    ttft_us: Micros | None
    e2e_us: Micros | None
    itl_mean_us: float
    scheduling_delay_us: Micros | None
    output_tokens: int
    instance: int
    """The number of the instance that served the request; -1 for none."""
    gateway_wait_us: Micros
    """The wait in the gateway's queue."""

    @property
    def is_completed(self) -> bool:
        return self.outcome in COMPLETED


class Record:
    """One entry per request that has arrived, in order of arrival: a few numbers each, whatever its tokens.

    The driver calls `arrived` for each arrival and `note` for the events, and closes the record at the end. Entries and
    columns can be read from then on.
    """

    def __init__(self, simulation: Simulation, on_tokens: OnTokens | None = None) -> None:
        self.rows: list[Origin] = []
        """Origin of each request."""
        self.ids: list[str] = []
        self.gaps = TokenGaps(simulation.instances)
        self._turns = OutputSerialization(simulation.instances)
        self._simulation = simulation
        self._on_tokens = on_tokens
        self._live: dict[Sequence, int] = {}
        """Sequences that are not in the columns yet, and their positions."""
        self._ended: list[Finished] = []
        """Rows of requests that have ended."""
        self._views: list[ClientView] = []
        """By number of instance."""
        self._reported = array("q")
        """Outcomes of requests in the order of their ends: their place and the columns below."""
        self._itl_reported = array("d")
        """Outcomes of `itl_mean_us` in the order of ends."""
        self._arrived_at = array("q")
        self._input_tokens = array("q")
        self._planned_output_tokens = array("q")
        self._outcome = array("b")
        self._ttft_us = array("q")
        self._e2e_us = array("q")
        self._itl_mean_us = array("d")
        self._scheduling_delay_us = array("q")
        self._output_tokens = array("q")
        self._instance = array("i")
        self._queued_at = array("q")
        self._cached_tokens = array("q")
        self._gateway_wait_us: dict[int, Micros] = {}
        """Waits by place, of requests that waited."""

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[RequestRecord]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, place: int) -> RequestRecord:
        outcome = self._outcome[place]
        return RequestRecord(
            id=self.ids[place],
            number=self.number(place),
            row=self.rows[place],
            arrived_at=self._arrived_at[place],
            input_tokens=self._input_tokens[place],
            planned_output_tokens=self._planned_output_tokens[place],
            outcome=None if outcome == NO_OUTCOME else OUTCOMES[outcome],
            ttft_us=_known(self._ttft_us[place]),
            e2e_us=_known(self._e2e_us[place]),
            itl_mean_us=self._itl_mean_us[place],
            scheduling_delay_us=_known(self._scheduling_delay_us[place]),
            output_tokens=self._output_tokens[place],
            instance=self._instance[place],
            gateway_wait_us=self._gateway_wait_us.get(place, 0),
        )

    def number(self, place: int) -> int:
        """Return the id of a request in results and traces: that of its trace, else its position among all arrivals."""
        row = self.rows[place]
        return row.request_id if isinstance(row, TraceRow) else place

    def arrived(self, sequences: SequenceOf[Sequence], rows: Iterable[Origin]) -> None:
        """Requests, made from as many rows, have been handed to the simulation in this order."""
        requests = [sequence.request for sequence in sequences]
        self._live.update(zip(sequences, range(len(self), len(self) + len(sequences)), strict=True))
        self.rows.extend(rows)
        self.ids.extend([request.id for request in requests])
        self._arrived_at.fromlist([sequence.arrived_at for sequence in sequences])
        self._input_tokens.fromlist([request.input_tokens for request in requests])
        self._planned_output_tokens.fromlist([request.output_tokens for request in requests])

    def note(self, events: Iterable[Event]) -> list[Finished]:
        """Take in events of the simulation. Returns the events that end requests."""
        ended = [event for event in events if isinstance(event, Finished)]
        self._ended += ended
        if len(self._ended) >= REPORT_BATCH_SIZE:
            self._report_ended()
        return ended

    def close(self) -> None:
        """Finish the record: take in unfinished requests, and order all by arrival."""
        self._report_ended()
        self._report(list(self._live), [self._simulation.now or 0] * len(self._live))
        self._enter_all()
        self._wait_for_turns()

    def with_times(
        self, arrived_at: Ints, ttft_us: Ints, e2e_us: Ints, itl_mean_us: Floats, scheduling_delay_us: Ints
    ) -> "Record":
        """Return the record with other times, in this order of requests; `NEVER` for events that did not happen."""
        other = copy(self)
        other._arrived_at = array("q", arrived_at.tolist())
        other._ttft_us = array("q", ttft_us.tolist())
        other._e2e_us = array("q", e2e_us.tolist())
        other._itl_mean_us = array("d", itl_mean_us.tolist())
        other._scheduling_delay_us = array("q", scheduling_delay_us.tolist())
        return other

    def _wait_for_turns(self) -> None:
        """Add the time that tokens wait for other tokens of their step."""
        for place, first_us, last_us in self._turns.delays():
            if self._ttft_us[place] != NEVER:
                self._ttft_us[place] += first_us
            if self._e2e_us[place] != NEVER:
                self._e2e_us[place] += last_us
                self._itl_mean_us[place] += (last_us - first_us) / max(self._output_tokens[place] - 1, 1)

    @property
    def by_id(self) -> Ints:
        """The places of all requests in the order of their ids as text, in which the original adds up."""
        return np.array(sorted(range(len(self)), key=self.ids.__getitem__), np.int64)

    @property
    def arrived_at(self) -> Ints:
        return np.array(self._arrived_at, np.int64)

    @property
    def input_tokens(self) -> Ints:
        return np.array(self._input_tokens, np.int64)

    @property
    def planned_output_tokens(self) -> Ints:
        return np.array(self._planned_output_tokens, np.int64)

    @property
    def output_tokens(self) -> Ints:
        """Tokens of each completed request; 0 for the others."""
        return np.array(self._output_tokens, np.int64)

    @property
    def outcome(self) -> Ints:
        """Place of each outcome in `OUTCOMES`, or `NO_OUTCOME`."""
        return np.array(self._outcome, np.int64)

    def count(self, outcome: Outcome) -> int:
        """Return how many requests ended in this way."""
        return self._outcome.count(OUTCOMES.index(outcome))

    @property
    def is_completed(self) -> Bools:
        return np.isin(np.array(self._outcome, np.int8), COMPLETED_CODES)

    @property
    def ttft_us(self) -> Ints:
        return np.array(self._ttft_us, np.int64)

    @property
    def e2e_us(self) -> Ints:
        """E2E of each request that has one: those that completed, and in BLIS those dropped after their prompt."""
        return np.array(self._e2e_us, np.int64)

    @property
    def itl_mean_us(self) -> Floats:
        return np.array(self._itl_mean_us, np.float64)

    @property
    def scheduling_delay_us(self) -> Ints:
        return np.array(self._scheduling_delay_us, np.int64)

    @property
    def instance(self) -> Ints:
        return np.array(self._instance, np.int64)

    @property
    def queued_at(self) -> Ints:
        """The instant at which each request joined the wait queue of its instance; `NEVER` if it did not."""
        return np.array(self._queued_at, np.int64)

    @property
    def cached_tokens(self) -> Ints:
        """Prompt tokens that each request found in the prefix cache when it was first admitted."""
        return np.array(self._cached_tokens, np.int64)

    def _report_ended(self) -> None:
        ended, self._ended = self._ended, []
        self._report([event.sequence for event in ended], [event.at for event in ended])

    def _report(self, sequences: list[Sequence], ended_at: list[Micros]) -> None:
        """Fill the columns for requests, each of which ended at its instant if it has ended."""
        if not sequences:
            return
        views, engines = self._views, self._simulation.instances
        views.extend(map(ClientView, engines[len(views) :]))
        places = list(map(self._live.pop, sequences))
        reported = outcome_columns(sequences, ended_at, views)
        self._reported.frombytes(np.stack([places, *reported[:-1]], axis=1).astype(np.int64, copy=False).tobytes())
        self._itl_reported.frombytes(reported.itl_mean_us.tobytes())
        self.gaps.add([sequences[each] for each in reported.completed_places])
        for place, sequence in zip(places, sequences, strict=True):
            if sequence.gateway_wait_us and sequence.instance != NOWHERE:
                self._gateway_wait_us[place] = sequence.gateway_wait_us
        self._add_turns(places, sequences)
        self._report_tokens(places, sequences, reported)

    def _add_turns(self, places: list[int], sequences: list[Sequence]) -> None:
        if any(view.serializes_tokens for view in self._views):
            for place, sequence in zip(places, sequences, strict=True):
                if sequence.instance != NOWHERE and self._views[sequence.instance].serializes_tokens:
                    self._turns.add(place, sequence)

    def _report_tokens(self, places: list[int], sequences: list[Sequence], reported: OutcomeColumns) -> None:
        if self._on_tokens is not None:
            for each in reported.completed_places:
                engine = self._views[sequences[each].instance].engine
                self._on_tokens(self.number(places[each]), token_times(engine, sequences[each]))

    def _enter_all(self) -> None:
        """Convert rows to columns; empty without rows."""
        columns = np.array(self._reported, np.int64).reshape(-1, 9).T
        places = columns[0]

        def column(values: Ints | Floats, empty: float, typecode: str) -> Any:
            whole = np.full(len(self), empty, typecode)
            whole[places] = values
            return array(typecode, whole.tobytes())

        self._outcome = column(columns[1], NO_OUTCOME, "b")
        self._ttft_us = column(columns[2], NEVER, "q")
        self._e2e_us = column(columns[3], NEVER, "q")
        self._scheduling_delay_us = column(columns[4], NEVER, "q")
        self._output_tokens = column(columns[5], 0, "q")
        self._instance = column(columns[6], NOWHERE, "i")
        self._queued_at = column(columns[7], NEVER, "q")
        self._cached_tokens = column(columns[8], 0, "q")
        self._itl_mean_us = column(np.array(self._itl_reported), 0.0, "d")
        self._reported, self._itl_reported = array("q"), array("d")


def _known(value: int) -> int | None:
    return None if value == NEVER else value
