"""One recording: the requests to simulate, the latencies that their client measured, and its parts in time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from blis_sim.engine.config import EngineConfig, refusal_reason
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished, Scheduled
from blis_sim.engine.sequence import Sequence as RunningSequence
from blis_sim.engine.simulation import run_virtual
from calibrate.fit.steps import Stretches, steps_of, stretches_of
from calibrate.pair import OK_STATUSES, CalibrateError, is_single_chunk
from replay.arrivals import Arrival, arrivals_of
from replay.simulation.record import Record
from replay.simulation.simulate import reissued, simulate, simulate_reissued
from traces import Trace, TraceRow

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Requests in order of arrival, with the measured times to the first token and from there to the last (both nan for
    a request that has none to learn from)."""

    name: str
    arrivals: list[Arrival]
    ttft_us: Floats
    decode_us: Floats
    stretches: Stretches | None = None
    """Steps derived from token times; None without token times."""
    max_concurrency: int | None = None
    """The cap requests are sent under (0: none), by schedule; None sends each when the recording did."""

    @property
    def num_answered(self) -> int:
        """Requests with a measured time to the first token."""
        return int(np.isfinite(self.ttft_us).sum())

    @property
    def sent_us(self) -> Floats:
        """Return the recorded send time of each request; without send times, the simulated arrival time."""
        sent_us = np.array([_sent_us(arrival) for arrival in self.arrivals], np.float64)
        return sent_us if sent_us.any() else np.array([arrival.at for arrival in self.arrivals], np.float64)

    @property
    def mean_in_flight(self) -> float:
        """Return the mean number of requests in flight, by the times of the recording; at least 1."""
        known = np.isfinite(self.ttft_us)
        if not known.any():
            return 1.0
        sent_us, lasted_us = self.sent_us[known], self.ttft_us[known] + np.nan_to_num(self.decode_us[known])
        return max(1.0, float(lasted_us.sum() / ((sent_us + lasted_us).max() - sent_us.min())))

    @property
    def found_idle(self) -> npt.NDArray[np.bool_]:
        """Requests that were sent when all before were answered, by the times of the recording."""
        sent_us = self.sent_us
        ended_us = np.nan_to_num(sent_us + self.ttft_us + np.nan_to_num(self.decode_us), nan=-np.inf)
        order = np.argsort(sent_us, kind="stable")
        all_ended_us = np.maximum.accumulate(np.concatenate([[-np.inf], ended_us[order][:-1]]))
        idle = np.zeros(len(sent_us), np.bool_)
        idle[order] = sent_us[order] > all_ended_us
        return idle

    def refusals(self, config: EngineConfig) -> list[str]:
        """Return the reason of each refused request of a server with this configuration."""
        requests = (arrival.request for arrival in self.arrivals)
        reasons = (refusal_reason(config, each.input_tokens, each.max_output_tokens) for each in requests)
        return [reason for reason in reasons if reason is not None]

    def simulated(self, engine: Engine) -> Record:
        """Simulate the requests in a fresh engine. Returns their outcomes in order of sending."""
        if self.max_concurrency is None:
            return simulate(engine, self.arrivals).requests
        return simulate_reissued(engine, self.arrivals, self.max_concurrency).requests

    def sequences(self, engine: Engine) -> list[RunningSequence | None]:
        """Simulate the requests as `simulated` does, and return the engine's own state of each, in the order of
        `arrivals`; None for requests that never arrived at it."""
        if self.max_concurrency is None:
            events = run_virtual(engine, ((arrival.at, arrival.request) for arrival in self.arrivals))
        else:
            sent = reissued(engine, self.arrivals, self.max_concurrency, None, lambda _sequence, _row: None)
            events = chain.from_iterable(sent)
        found = {each.sequence.request.id: each.sequence for each in events if isinstance(each, Scheduled | Finished)}
        return [found.get(arrival.request.id) for arrival in self.arrivals]

    def head(self, num_requests: int) -> "Recording":
        """The first so many requests. There is nothing to learn from those that ran beside later ones: alone they would
        have been faster."""
        if num_requests >= len(self.arrivals):
            return self
        kept = self._masked(self._ended_before(num_requests))
        return replace(
            kept,
            arrivals=self.arrivals[:num_requests],
            ttft_us=kept.ttft_us[:num_requests],
            decode_us=kept.decode_us[:num_requests],
            stretches=self._stretches(np.arange(len(self.arrivals)) < num_requests),
        )

    def _ended_before(self, num_requests: int) -> npt.NDArray[np.bool_]:
        """Return which of the first `num_requests` requests had ended when the next one was sent."""
        sent_us = np.array([_sent_us(arrival) for arrival in self.arrivals], np.float64)
        ended_us = sent_us + self.ttft_us + np.nan_to_num(self.decode_us)
        is_first = np.arange(len(self.arrivals)) < num_requests
        ended: npt.NDArray[np.bool_] = is_first & (ended_us <= sent_us[num_requests:].min())
        return ended

    def without_tail(self, share: float) -> "Recording":
        """All requests, but nothing to learn from the last `share` of them."""
        keep = np.arange(len(self.arrivals)) < round(len(self.arrivals) * (1 - share))
        return self._masked(keep)

    def only_tail(self, share: float) -> "Recording":
        """All requests, with measurements of the last `share` of them only."""
        keep = np.arange(len(self.arrivals)) >= round(len(self.arrivals) * (1 - share))
        return self._masked(keep)

    def _masked(self, keep: npt.NDArray[np.bool_]) -> "Recording":
        return replace(
            self,
            ttft_us=np.where(keep, self.ttft_us, np.nan),
            decode_us=np.where(keep, self.decode_us, np.nan),
            stretches=self._stretches(keep),
        )

    def _stretches(self, keep: npt.NDArray[np.bool_]) -> Stretches | None:
        return None if self.stretches is None else self.stretches.only(keep)


def recording_of(
    trace: Trace,
    model: str,
    config: EngineConfig,
    chunks: Mapping[int, Sequence[int]],
    max_concurrency: int | None = None,
) -> Recording:
    """A trace made ready. With `max_concurrency` requests are sent by the schedule and that cap (0: none).

    Raises CalibrateError when no row can be learned from.
    """
    arrivals = arrivals_of(trace, model, config, as_scheduled=max_concurrency is not None).arrivals
    rows = [arrival.row for arrival in arrivals if isinstance(arrival.row, TraceRow)]
    measured = np.array([_measured(row) for row in rows], np.float64).reshape(-1, 2)
    if not np.isfinite(measured[:, 0]).any():
        lacking = f"none for {model} was answered in a stream, with its times"
        raise CalibrateError(f"no row of {trace.data_path} can be learned from: {lacking}")
    steps = steps_of(arrivals, chunks, config)
    return Recording(
        name="/".join(trace.data_path.absolute().parts[-2:]),
        arrivals=arrivals,
        ttft_us=measured[:, 0],
        decode_us=measured[:, 1],
        stretches=None if steps is None else stretches_of(steps),
        max_concurrency=max_concurrency,
    )


def _sent_us(arrival: Arrival) -> int:
    """Return the recorded send time of a request."""
    return arrival.row.send_time_us if isinstance(arrival.row, TraceRow) else arrival.at


def _measured(row: TraceRow) -> tuple[float, float]:
    in_order = 0 < row.send_time_us <= row.first_chunk_time_us <= row.last_chunk_time_us
    if row.status not in OK_STATUSES or not in_order or is_single_chunk(row):
        return np.nan, np.nan
    decode_us = row.last_chunk_time_us - row.first_chunk_time_us if row.output_tokens > 1 else np.nan
    return row.first_chunk_time_us - row.send_time_us, decode_us


MAX_SPANS = 12
MIN_REQUESTS = 200
"""Least requests of a span: with fewer its speed would depend more on chance than on the server."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Each recording in parts of so many requests; parts are numbered through, recording after recording."""

    lengths: tuple[int, ...]
    """Requests in each part of a recording; the last part may be shorter."""
    counts: tuple[int, ...]
    """Parts of each recording."""

    @property
    def total(self) -> int:
        return sum(self.counts)

    def memberships(self, recording: int, num_requests: int) -> Floats:
        """A row for each of the first so many requests of a recording, with a 1 in the column of its part."""
        first = sum(self.counts[:recording])
        rows = np.arange(num_requests)
        members = np.zeros((num_requests, self.total))
        members[rows, first + np.minimum(rows // self.lengths[recording], self.counts[recording] - 1)] = 1
        return members

    def of_each(self, values: Floats) -> list[Floats]:
        """`values`, one for each part, by recording."""
        return np.split(values, np.cumsum(self.counts)[:-1])


def spans_of(recordings: Sequence[Recording]) -> Spans:
    """Up to a dozen parts of equal length in each recording."""
    sizes = [len(each.arrivals) for each in recordings]
    counts = tuple(min(MAX_SPANS, max(1, size // MIN_REQUESTS)) for size in sizes)
    return Spans(tuple(max(1, -(-size // count)) for size, count in zip(sizes, counts, strict=True)), counts)
