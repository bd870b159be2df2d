"""A few numbers for each request of a run, from which all later figures are computed."""

from array import array
from itertools import compress

import numpy as np
import numpy.typing as npt

from observe.dispatch import Sent

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_FIELDS = (
    "is_ok",
    "sent",
    "ended",
    "output_tokens",
    "first_chunk",
    "last_chunk",
    "lag",
    "line_wait",
    "num_token_times",
)
_PLACES = {name: place for place, name in enumerate(_FIELDS)}


class RequestLog:
    """One entry per request, in the order in which they ended. Instants and durations in nanoseconds.

    Taking in a request only puts its numbers behind those that are there; what they amount to is computed when asked.
    `token_times` holds the instants of the tokens of all answered streams one after the other, `num_token_times` how
    many of them each has.
    """

    def __init__(self) -> None:
        self.slo_classes: list[str] = []
        self._numbers = array("q")
        self._token_times = array("q")

    def __len__(self) -> int:
        return len(self.slo_classes)

    def add(self, sent: Sent) -> None:
        """Take in a request that has ended. Latencies are known of those that were answered in full."""
        outcome, token_times = sent.outcome, self._token_times
        reply, at = outcome.reply, outcome.sent
        first = last = output_tokens = 0
        num_before = len(token_times)
        if outcome.status == "ok":
            output_tokens = outcome.output_tokens
            times = reply.chunk_times
            if times:
                first, last = times[0], times[-1]
                if reply.streaming:
                    token_times.extend(compress(times, reply.carries_tokens))
        self.slo_classes.append(sent.prepared.planned.slo_class)
        self._numbers.extend(
            (
                outcome.status == "ok",
                at,
                outcome.ended,
                output_tokens,
                first,
                last,
                at - sent.allowed,
                sent.allowed - sent.due,
                len(token_times) - num_before,
            )
        )

    def absorb(self, other: "RequestLog") -> None:
        """Take over the requests of another log."""
        self.slo_classes += other.slo_classes
        self._numbers.extend(other._numbers)
        self._token_times.extend(other._token_times)

    def recent(self, most: int) -> "RequestLog":
        """The requests that ended last, at most so many, without the times of their tokens."""
        log = RequestLog()
        log.slo_classes = self.slo_classes[-most:]
        log._numbers = self._numbers[-most * len(_FIELDS) :]
        return log

    @property
    def is_ok(self) -> npt.NDArray[np.bool_]:
        """Which requests were answered in full."""
        return self._column("is_ok").astype(np.bool_)

    @property
    def sent(self) -> Ints:
        """When each was sent."""
        return self._column("sent")

    @property
    def ended(self) -> Ints:
        """When each had ended, however it did."""
        return self._column("ended")

    @property
    def output_tokens(self) -> Ints:
        """Tokens of each answer, 0 of those that failed."""
        return self._column("output_tokens")

    @property
    def lag(self) -> Ints:
        """How long after it was allowed each was sent."""
        return self._column("lag")

    @property
    def line_wait(self) -> Ints:
        """How long those waited for others to end that did."""
        waits = self._column("line_wait")
        return waits[waits > 0]

    @property
    def latencies(self) -> dict[str, Floats]:
        """The time to first token, between tokens (its mean) and of the whole request; NaN where unknown."""
        sent, first, last = self.sent, self._column("first_chunk"), self._column("last_chunk")
        is_answered = first != 0
        return {
            "ttft": np.where(is_answered, first - sent, np.nan),
            "itl": self._mean_gaps(),
            "e2e": np.where(is_answered, last - sent, np.nan),
        }

    @property
    def token_times(self) -> Ints:
        """When tokens came, request by request."""
        return np.array(self._token_times, np.int64)

    @property
    def num_token_times(self) -> Ints:
        """How many of `token_times` each request has."""
        return self._column("num_token_times")

    @property
    def gaps(self) -> tuple[Ints, Ints]:
        """When each gap between two tokens of a request ended, and how long it was."""
        times = self.token_times
        is_inside = np.ones(max(0, len(times) - 1), np.bool_)
        ends = np.cumsum(self.num_token_times)
        # From the last token of one request to the first of the next is no gap.
        is_inside[ends[(ends > 0) & (ends < len(times))] - 1] = False
        return times[1:][is_inside], np.diff(times)[is_inside]

    def _mean_gaps(self) -> Floats:
        means = np.full(len(self), np.nan)
        if self._token_times:
            counts, num_gaps = self.num_token_times, self.output_tokens - 1
            ends = np.cumsum(counts)
            is_known = (counts > 0) & (num_gaps > 0)
            times = self.token_times
            spans = times[ends[is_known] - 1] - times[ends[is_known] - counts[is_known]]
            means[is_known] = spans / num_gaps[is_known]
        return means

    def _column(self, name: str) -> Ints:
        return np.array(self._numbers, np.int64).reshape(-1, len(_FIELDS))[:, _PLACES[name]]
