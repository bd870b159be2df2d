"""Mean time between tokens of each request, from the chunk times of the recording and from the simulation.

Without chunk times, the times of the first and the last chunk, which every recording has, are used.

A stream holds more chunks than tokens: chat begins with a chunk that only names the role, and ends with one that only
holds the usage counts. Neither is a token, and counting their gaps makes tokens look faster than they were.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from blis_sim.options.addition import sequential_sum
from calibrate.pair import Floats, Pairing
from traces import ResultRow, TraceRow

SAME_INSTANT_SHARE = 0.25
"""Share of the mean gap below which two chunks count as sent together."""
MAX_CHUNKS_WITHOUT_TOKEN = 3
"""Role, finish reason and usage. A stream with more is of unknown make and left as it is."""


@dataclass(frozen=True, slots=True)
class Itl:
    """Mean time between tokens per pair in microseconds, nan where there is none.

    `num_without_gaps` counts pairs whose chunks gave none though there were enough of them.
    """

    real_us: Floats
    sim_us: Floats
    num_without_gaps: int

    def both(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return which pairs have a time between tokens on both sides."""
        return ~(np.isnan(self.real_us) | np.isnan(self.sim_us))


def itl(pairing: Pairing, chunks: Mapping[int, Sequence[int]]) -> Itl:
    """Times between tokens of each pair, chunks without a token left out; without any chunks, `itl_from_ends_us`.

    The simulated side is its mean inter-token latency, else the time from first to last token spread over the gaps.
    """
    if chunks:
        real = [
            real_itl_us(chunks.get(row.request_id, ()), row.output_tokens, row.first_chunk_time_us)
            for row in pairing.rows
        ]
    else:
        real = [itl_from_ends_us(row) for row in pairing.rows]
    enough = [len(chunks.get(row.request_id, ())) >= 2 and row.output_tokens != 1 for row in pairing.rows]
    num_without_gaps = sum(1 for has, value in zip(enough, real, strict=True) if has and np.isnan(value))
    return Itl(_array(real), _array([sim_itl_us(result) for result in pairing.results]), num_without_gaps)


def itl_compat(pairing: Pairing, chunks: Mapping[int, Sequence[int]]) -> Itl:
    """Compute ITL as the original does: gaps between all chunks, role and usage too; simulated from E2E and TTFT, 0 for
    one token."""
    real = []
    num_without_gaps = 0
    for row in pairing.rows:
        times = chunks.get(row.request_id, ())
        gaps = [later - earlier for earlier, later in pairwise(times) if later >= earlier]
        num_without_gaps += len(times) >= 2 and not gaps
        real.append(sequential_sum(gaps) / len(gaps) if gaps else np.nan)
    sim = [
        (result.e2e_us - result.ttft_us) / (result.output_tokens - 1) if result.output_tokens > 1 else 0.0
        for result in pairing.results
    ]
    return Itl(_array(real), _array(sim), num_without_gaps)


def content_chunks(chunks: Sequence[int], output_tokens: int, first_token_us: int = 0) -> tuple[int, int]:
    """The places of the first and the last chunk that hold a token.

    Where `first_token_us` is behind the first chunk, the first token is there. Else, how many chunks hold none follows
    from the counts. Two or three are the role before and usage (after a finish reason) behind. A single one is the role
    if it came together with the next chunk, closer than its neighbours and the last two did, else the usage.
    """
    last = len(chunks) - 1
    if chunks and chunks[0] < first_token_us <= chunks[last]:
        first = next(place for place, at in enumerate(chunks) if at >= first_token_us)
        num_behind = last + 1 - first - output_tokens if output_tokens else 0
        return first, last - num_behind if 0 <= num_behind < MAX_CHUNKS_WITHOUT_TOKEN else last
    num_extra = len(chunks) - output_tokens if output_tokens else 0
    if last < 2 or not 1 <= num_extra <= MAX_CHUNKS_WITHOUT_TOKEN:
        return 0, last
    if num_extra == 1:
        hair_us = SAME_INSTANT_SHARE * (chunks[last] - chunks[0]) / last
        first_gap_us, next_gap_us = chunks[1] - chunks[0], chunks[2] - chunks[1]
        alone = 2 * first_gap_us < next_gap_us and first_gap_us < chunks[last] - chunks[last - 1]
        return (1, last) if first_gap_us <= hair_us and alone else (0, last - 1)
    return 1, last - (num_extra - 1)


def real_itl_us(chunks: Sequence[int], output_tokens: int, first_token_us: int = 0) -> float:
    """Mean time between tokens in microseconds, nan if there is none or the clock went backwards.

    The time from the first to the last token is spread over the tokens the server counted, so that chunks with several
    tokens count as several; without a count, over the chunks.
    """
    first, last = content_chunks(chunks, output_tokens, first_token_us)
    num_gaps = (output_tokens or last - first + 1) - 1
    if last <= first or num_gaps < 1 or chunks[last] < chunks[first]:
        return np.nan
    return (chunks[last] - chunks[first]) / num_gaps


def itl_from_ends_us(row: TraceRow) -> float:
    """The time from the first to the last chunk of a recorded request, spread over the gaps between its tokens.

    Nan for an output of one token, and for one that came in one piece.
    """
    spread_us = row.last_chunk_time_us - row.first_chunk_time_us
    return spread_us / (row.output_tokens - 1) if row.output_tokens > 1 and spread_us > 0 else np.nan


def sim_itl_us(result: ResultRow) -> float:
    """Mean time between tokens in microseconds, nan for an output of one token."""
    if result.itl_mean_us is not None:
        return result.itl_mean_us
    return (result.e2e_us - result.ttft_us) / (result.output_tokens - 1) if result.output_tokens > 1 else np.nan


def _array(values: list[float]) -> Floats:
    return np.array(values, dtype=np.float64)
