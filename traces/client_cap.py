"""Detects a cap on requests in flight of a recording's client from its send times; no column holds the cap.

With a cap, a request that is due while all places are taken is sent late. It is sent in the moment in which a reply
frees a place. The server then decides when that is.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from traces.packed import PackedRows
from traces.rows import TraceRow

LATE_US = 50_000
"""Sent that much after they were due, requests have waited for something; a client that keeps up sends within 5 ms."""
LATE_SHARE = 0.01
"""Fewer late requests than this do not make a recording a saturated one."""
MIN_LATE = 3
FULL_SHARE = 0.9
"""Late requests are due to a cap under two conditions.

So many of them were sent right after a reply, with so many of the largest number in flight.
"""
REFILLED_US = 5_000
"""Replies to many requests may come at once; their places are taken one after the other, within that time."""
STAMPED_LATE_US = 1_000
"""The end of a reply may be stamped that much after the next request has taken its place."""

Ints = npt.NDArray[np.int64]


class ClientCap(NamedTuple):
    """The effect of a cap on a recording: how many of its requests waited, how long at most, and the size of the
    cap."""

    max_concurrency: int
    num_late: int
    num_requests: int
    longest_wait_us: int

    def __str__(self) -> str:
        return (
            f"{self.num_late:,} of {self.num_requests:,} requests were sent late (up to "
            f"{self.longest_wait_us / 1e6:.1f} s), when {self.max_concurrency} were in flight. The client had a cap, "
            "and the server's speed decided when they were sent"
        )


def client_cap_of(rows: Sequence[TraceRow]) -> ClientCap | None:
    """The cap that shows in the send times of a recording, None where none does.

    Later rounds of a conversation wait for replies in any case. Requests without an answer hold an unknown time and are
    not counted. The cap of a recording with many of them comes out too low.
    """
    packed = PackedRows.of(TraceRow, rows)
    sent, due, ended, rounds = map(
        packed.ints, ("send_time_us", "arrival_time_us", "last_chunk_time_us", "round_index")
    )
    known = (sent > 0) & (sent <= ended)
    if not known.any():
        return None
    sent, due, ended, is_first = sent[known], due[known], ended[known], rounds[known] == 0
    wait_us = sent - due
    wait_us -= wait_us.min()
    late = is_first & (wait_us >= LATE_US)
    num_late = int(late.sum())
    if num_late < max(MIN_LATE, LATE_SHARE * len(sent)):
        return None
    in_flight, since_reply_us = _at(sent[late], np.sort(sent), np.sort(ended))
    full = (in_flight >= FULL_SHARE * in_flight.max()) & (since_reply_us < LATE_US)
    if full.mean() < FULL_SHARE:
        return None
    return ClientCap(int(np.median(in_flight)), num_late, len(sent), int(wait_us[late].max()))


def _at(instants: Ints, sent: Ints, ended: Ints) -> tuple[Ints, Ints]:
    """Return the number of requests in flight at each instant, or right before, and the time since the last reply."""
    num_replied = np.searchsorted(ended, instants + STAMPED_LATE_US, side="right")
    now = np.searchsorted(sent, instants, side="right") - num_replied
    before = instants - REFILLED_US
    right_before = np.searchsorted(sent, before, side="right") - np.searchsorted(ended, before, side="right")
    last_reply = np.where(num_replied > 0, ended[np.maximum(num_replied - 1, 0)], instants - LATE_US)
    return np.maximum(now, right_before), instants - last_reply
