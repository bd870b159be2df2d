"""What a run has measured so far: everything for the summary, the most recent for the live view."""

from array import array
from collections import Counter, deque
from itertools import pairwise

from observe.clock import Nanos
from observe.dispatch import Sent
from observe.exchange import Outcome
from observe.request_log import RequestLog

_RECENT = 1000


class RunStats:
    """Durations in nanoseconds, one per request that they are known of; counts of everything else.

    `num_uncounted` requests had answers without a token count, `num_other_length` had outputs of another length
    than planned.
    """

    def __init__(self, *, keeps_token_times: bool = False) -> None:
        self.log = RequestLog(keeps_token_times=keeps_token_times)
        self.ttft = array("q")
        self.e2e = array("q")
        self.itl = array("q")
        self.tpot = array("d")
        self.lag = array("q")
        self.line_wait = array("q")
        self.kinds: Counter[str] = Counter()
        self.first_error = ""
        self.input_tokens = 0
        self.output_tokens = 0
        self.num_uncounted = 0
        self.num_other_length = 0
        self.first_sent: Nanos = 0
        self.last_ended: Nanos = 0
        self.recent_ttft: deque[Nanos] = deque(maxlen=_RECENT)
        self.recent_e2e: deque[Nanos] = deque(maxlen=_RECENT)
        self.recent_lag: deque[Nanos] = deque(maxlen=_RECENT)

    @property
    def duration_s(self) -> float:
        """Seconds from the first sending to the last end."""
        return max(0, self.last_ended - self.first_sent) / 1e9 if self.first_sent else 0.0

    @property
    def num_ended(self) -> int:
        """All requests that have ended."""
        return self.kinds.total()

    @property
    def num_ok(self) -> int:
        """Those that were answered in full."""
        return self.kinds["ok"]

    def absorb(self, other: "RunStats") -> None:
        """Take over what another process has measured in the same run."""
        self.log.absorb(other.log)
        self.kinds += other.kinds
        self.first_error = self.first_error or other.first_error
        self.first_sent = min((at for at in (self.first_sent, other.first_sent) if at), default=0)
        self.last_ended = max(self.last_ended, other.last_ended)
        for name in ("ttft", "e2e", "itl", "tpot", "lag", "line_wait", "recent_ttft", "recent_e2e", "recent_lag"):
            getattr(self, name).extend(getattr(other, name))
        for name in ("input_tokens", "output_tokens", "num_uncounted", "num_other_length"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add(self, sent: Sent) -> None:
        """Take in a request that has ended."""
        outcome = sent.outcome
        self.log.add(sent)
        self.kinds[outcome.kind] += 1
        self.last_ended = max(self.last_ended, outcome.ended)
        self._add_sending(sent, outcome.sent)
        if outcome.status == "ok":
            self._add_latencies(outcome)
            self._add_tokens(sent, outcome)
        elif not self.first_error and outcome.kind != "cancelled":
            self.first_error = outcome.error_message

    def _add_sending(self, sent: Sent, at: Nanos) -> None:
        self.first_sent = min(self.first_sent, at) if self.first_sent else at
        self.lag.append(at - sent.allowed)
        self.recent_lag.append(at - sent.allowed)
        if sent.allowed > sent.due:
            self.line_wait.append(sent.allowed - sent.due)

    def _add_latencies(self, outcome: Outcome) -> None:
        if not outcome.first_chunk:
            return
        self.ttft.append(outcome.first_chunk - outcome.sent)
        self.e2e.append(outcome.last_chunk - outcome.sent)
        self.recent_ttft.append(self.ttft[-1])
        self.recent_e2e.append(self.e2e[-1])
        times = outcome.token_times
        self.itl.extend(later - earlier for earlier, later in pairwise(times))
        if outcome.reply.streaming and times and outcome.output_tokens > 1:
            self.tpot.append((times[-1] - times[0]) / (outcome.output_tokens - 1))

    def _add_tokens(self, sent: Sent, outcome: Outcome) -> None:
        self.input_tokens += outcome.reply.prompt_tokens or 0
        self.output_tokens += outcome.output_tokens
        if outcome.reply.completion_tokens is None:
            self.num_uncounted += 1
        elif outcome.output_tokens != sent.prepared.planned.output_tokens:
            self.num_other_length += 1
