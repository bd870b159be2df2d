"""What each request of a run experienced, a few numbers each, for questions that are asked at the end."""

from array import array

import numpy as np
import numpy.typing as npt

from observe.dispatch import Sent

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_UNKNOWN = float("nan")


class RequestLog:
    """One entry per request, in the order in which they ended. Instants and durations in nanoseconds.

    When tokens came is kept only with `keeps_token_times`: `token_times` holds the instants of all requests one after
    the other, `num_token_times` how many of them each has.
    """

    def __init__(self, *, keeps_token_times: bool = False) -> None:
        self.keeps_token_times = keeps_token_times
        self.slo_classes: list[str] = []
        self._is_ok = bytearray()
        self._sent = array("q")
        self._ended = array("q")
        self._output_tokens = array("q")
        self._ttft = array("d")
        self._e2e = array("d")
        self._itl = array("d")
        self._token_times = array("q")
        self._num_token_times = array("q")

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, sent: Sent) -> None:
        """Take in a request that has ended. Latencies are known of those that were answered in full."""
        outcome = sent.outcome
        is_answered = outcome.status == "ok" and outcome.first_chunk != 0
        self.slo_classes.append(sent.prepared.planned.slo_class)
        self._is_ok.append(outcome.status == "ok")
        self._sent.append(outcome.sent)
        self._ended.append(outcome.ended)
        self._output_tokens.append(outcome.output_tokens if outcome.status == "ok" else 0)
        self._ttft.append(outcome.first_chunk - outcome.sent if is_answered else _UNKNOWN)
        self._e2e.append(outcome.last_chunk - outcome.sent if is_answered else _UNKNOWN)
        times = outcome.token_times if is_answered and outcome.reply.streaming else []
        num_gaps = outcome.output_tokens - 1
        self._itl.append((times[-1] - times[0]) / num_gaps if times and num_gaps > 0 else _UNKNOWN)
        if self.keeps_token_times:
            self._token_times.extend(times)
            self._num_token_times.append(len(times))

    def absorb(self, other: "RequestLog") -> None:
        """Take over the requests of another log."""
        self.slo_classes += other.slo_classes
        self._is_ok += other._is_ok
        for name in ("_sent", "_ended", "_output_tokens", "_ttft", "_e2e", "_itl", "_token_times", "_num_token_times"):
            getattr(self, name).extend(getattr(other, name))

    @property
    def is_ok(self) -> npt.NDArray[np.bool_]:
        """Which requests were answered in full."""
        return np.frombuffer(bytes(self._is_ok), np.bool_)

    @property
    def sent(self) -> Ints:
        """When each was sent."""
        return np.array(self._sent, np.int64)

    @property
    def ended(self) -> Ints:
        """When each had ended, however it did."""
        return np.array(self._ended, np.int64)

    @property
    def output_tokens(self) -> Ints:
        """Tokens of each answer, 0 of those that failed."""
        return np.array(self._output_tokens, np.int64)

    @property
    def latencies(self) -> dict[str, Floats]:
        """The time to first token, between tokens (its mean) and of the whole request; NaN where unknown."""
        columns = {"ttft": self._ttft, "itl": self._itl, "e2e": self._e2e}
        return {name: np.array(column, np.float64) for name, column in columns.items()}

    @property
    def token_times(self) -> Ints:
        """When tokens came, request by request."""
        return np.array(self._token_times, np.int64)

    @property
    def num_token_times(self) -> Ints:
        """How many of `token_times` each request has."""
        return np.array(self._num_token_times, np.int64)
