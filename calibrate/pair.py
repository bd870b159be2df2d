"""Rows of a recording and the results of a simulation they are compared with, both on the footing of one network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.options import BlisError
from traces import ResultRow, Trace, TraceHeader, TraceRow


class CalibrateError(BlisError):
    """Files that can be read, but have nothing in common or lack required values."""


OK_STATUSES = frozenset({"ok", ""})
"""Statuses of rows with a complete reply; some recorders write no status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Rows and results that belong together (`rows[i]` with `results[i]`), and how many were left out and why.

    `comparable[i]`: the pair has latencies to compare; by the plain rules, all pairs have.
    """

    rows: list[TraceRow]
    results: list[ResultRow]
    comparable: list[bool]
    num_warm_up: int
    num_failed: int
    num_without_times: int
    num_repeated: int
    num_unmatched_rows: int
    num_unmatched_results: int
    num_repeated_results: int

    @property
    def num_matched(self) -> int:
        """Pairs, with or without latencies to compare."""
        return len(self.rows)

    @property
    def num_token_mismatches(self) -> int:
        """Pairs in which recording and simulation count prompt or output tokens differently."""
        return sum(map(_tokens_differ, self.rows, self.results))

    @property
    def num_in_one_piece(self) -> int:
        """Pairs whose recorded time to the first token is that to the last."""
        return sum(map(is_single_chunk, self.rows))

    @property
    def num_requests(self) -> int:
        """Every row once: matched, excluded or unmatched."""
        excluded = self.num_warm_up + self.num_failed + self.num_without_times + self.num_repeated
        return self.num_matched + excluded + self.num_unmatched_rows


def pair(trace: Trace, results: Sequence[ResultRow], warm_up_requests: int) -> Pairing:
    """Pair the rows that can be compared with the results of the same request_id.

    Each row counts once: as warm-up; as failed (its status is not ok); as repeated (an earlier row has its id); as
    without times (no first chunk, or chunks before the request was sent); as unmatched; or as one of a pair. The last
    of repeated results counts.

    Warm-up is the first `warm_up_requests` of the run in the order they were sent, whatever their numbers. A recorder
    that leaves its warm-up out starts its numbers behind it; warm-up requests that the header counts and that are gone
    already are not taken away a second time.
    """
    by_id = {result.request_id: result for result in results}
    warm_up = _first_sent(trace, warm_up_requests)
    num_failed = num_without_times = num_repeated = num_unmatched = 0
    matched: dict[int, TraceRow] = {}
    seen: set[int] = set()
    for place, row in enumerate(trace.rows):
        if place in warm_up:
            continue
        if row.status not in OK_STATUSES:
            num_failed += 1
        elif row.request_id in seen:
            num_repeated += 1
        elif not _has_times(row):
            num_without_times += 1
        elif row.request_id not in by_id:
            num_unmatched += 1
        else:
            matched[row.request_id] = row
        seen.add(row.request_id)
    return Pairing(
        rows=list(matched.values()),
        results=[by_id[request_id] for request_id in matched],
        comparable=[True] * len(matched),
        num_warm_up=len(warm_up),
        num_failed=num_failed,
        num_without_times=num_without_times,
        num_repeated=num_repeated,
        num_unmatched_rows=num_unmatched,
        num_unmatched_results=_num_without_row(by_id, trace),
        num_repeated_results=len(results) - len(by_id),
    )


def pair_compat(trace: Trace, results: Sequence[ResultRow], warm_up_requests: int) -> Pairing:
    """Pair as the original does: warm-up by id value, whatever the status, repeated rows as often as they occur.

    Rows whose chunks precede their sending stay matched without being compared and count as unmatched as well.
    """
    by_id = {result.request_id: result for result in results}
    measured = [row for row in trace.rows if row.request_id >= warm_up_requests]
    matched = [row for row in measured if row.request_id in by_id]
    comparable = [min(row.first_chunk_time_us, row.last_chunk_time_us) >= row.send_time_us for row in matched]
    return Pairing(
        rows=matched,
        results=[by_id[row.request_id] for row in matched],
        comparable=comparable,
        num_warm_up=len(trace.rows) - len(measured),
        num_failed=0,
        num_without_times=0,
        num_repeated=0,
        num_unmatched_rows=len(measured) - len(matched) + comparable.count(False),
        num_unmatched_results=_num_without_row(by_id, trace),
        num_repeated_results=len(results) - len(by_id),
    )


def _first_sent(trace: Trace, warm_up_requests: int) -> set[int]:
    """The places of the rows that are warm-up."""
    if not trace.rows or warm_up_requests <= 0:
        return set()
    left_out = trace.header.warm_up_requests
    already_gone = left_out if min(row.request_id for row in trace.rows) >= left_out else 0
    # Rows that were never sent have no send time; then only arrivals share one clock.
    all_sent = all(row.send_time_us for row in trace.rows)

    def sent(place: int) -> tuple[int, int]:
        row = trace.rows[place]
        return (row.send_time_us if all_sent else row.arrival_time_us, row.request_id)

    return set(sorted(range(len(trace.rows)), key=sent)[: max(0, warm_up_requests - already_gone)])


def _num_without_row(by_id: Mapping[int, ResultRow], trace: Trace) -> int:
    return len(by_id.keys() - {row.request_id for row in trace.rows})


def _has_times(row: TraceRow) -> bool:
    in_order = row.send_time_us <= row.first_chunk_time_us <= row.last_chunk_time_us
    return row.first_chunk_time_us != 0 and in_order


def is_single_chunk(row: TraceRow) -> bool:
    """Whether several tokens came at once, as without a stream, so that the time of the first is unknown."""
    return row.output_tokens > 1 and row.first_chunk_time_us == row.last_chunk_time_us


def check_same_tokens(pairing: Pairing, trace: Trace, source: str) -> None:
    """Raise CalibrateError for the first result of `source` whose tokens cannot be those of its recorded request.

    A result without a number of tokens counts as alike, and so does a prompt with or without the prefix of its group,
    or as the server counted it.
    """
    prefixes: dict[str, set[int]] = {}
    for row in trace.rows:
        prefixes.setdefault(row.prefix_group, set()).add(row.prefix_length)
    for row, result in zip(pairing.rows, pairing.results, strict=True):
        prompts = {row.server_input_tokens, row.input_tokens}
        prompts |= {prefix + row.input_tokens for prefix in prefixes[row.prefix_group]}
        if result.input_tokens and result.input_tokens not in prompts:
            raise _other_tokens(source, row, "input_tokens", result.input_tokens)
        if result.output_tokens and result.output_tokens != row.output_tokens:
            raise _other_tokens(source, row, "output_tokens", result.output_tokens)


def _other_tokens(source: str, row: TraceRow, key: str, found: int) -> CalibrateError:
    place, expected = f"{source} request_id {row.request_id} key {key}", getattr(row, key)
    return CalibrateError(
        f"{place}: expected {expected} as in the recording, got {found};"
        " simulate this very recording, with blis replay --results-path"
    )


def _tokens_differ(row: TraceRow, result: ResultRow) -> bool:
    input_tokens = row.server_input_tokens or row.input_tokens
    return input_tokens != result.input_tokens or row.output_tokens != result.output_tokens


Floats = npt.NDArray[np.float64]
BITS_PER_TOKEN = 4 * 8
"""A token is four bytes of text on average."""


@dataclass(frozen=True, slots=True)
class Network:
    """The way between client and server: round trip in microseconds, bandwidth in Mbit/s (0: no transfer delay)."""

    rtt_us: int = 0
    bandwidth_mbps: float = 0.0

    def transfer_us(self, tokens: Floats) -> Floats:
        """Time on the wire for so many tokens."""
        return tokens * BITS_PER_TOKEN / self.bandwidth_mbps if self.bandwidth_mbps > 0 else np.zeros_like(tokens)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Arrays with one entry per pair, in microseconds."""

    real_ttft_us: Floats
    sim_ttft_us: Floats
    real_e2e_us: Floats
    sim_e2e_us: Floats


def rtt_us_of(header: TraceHeader) -> int:
    """The round trip measured when recording, in whole microseconds; 0 if it was not."""
    return int((header.measured_rtt_ms or 0.0) * 1000)


def latencies(pairing: Pairing, network: Network) -> Latencies:
    """Recorded latencies, and simulated ones with the network added: round trip and prompt, for E2E output as well."""
    rows, results = pairing.rows, pairing.results
    up_us = network.rtt_us + network.transfer_us(_array([result.input_tokens for result in results]))
    down_us = network.transfer_us(_array([result.output_tokens for result in results]))
    return Latencies(
        real_ttft_us=_array([row.first_chunk_time_us - row.send_time_us for row in rows]),
        sim_ttft_us=_array([result.ttft_us for result in results]) + up_us,
        real_e2e_us=_array([row.last_chunk_time_us - row.send_time_us for row in rows]),
        sim_e2e_us=_array([result.e2e_us for result in results]) + up_us + down_us,
    )


def _array(values: list[int] | list[float]) -> Floats:
    return np.array(values, dtype=np.float64)
