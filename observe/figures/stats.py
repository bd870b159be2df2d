"""Running figures of a run."""

from collections import Counter

from observe.clock import Nanos
from observe.dispatch import Sent
from observe.figures.request_log import RequestLog


class RunStats:
    """The requests that have ended, in `log`, and counts of what became of them.

    `num_uncounted` requests had answers without a token count, `num_other_length` had outputs of another length
    than planned.
    """

    def __init__(self) -> None:
        self.log = RequestLog()
        self.kinds: Counter[str] = Counter()
        self.first_error = ""
        self.input_tokens = 0
        self.output_tokens = 0
        self.num_uncounted = 0
        self.num_other_length = 0
        self.first_sent: Nanos = 0
        self.last_ended: Nanos = 0

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
        """Requests with a complete reply."""
        return self.kinds["ok"]

    def absorb(self, other: "RunStats") -> None:
        """Take over what another process has measured in the same run."""
        self.log.absorb(other.log)
        self.kinds += other.kinds
        self.first_error = self.first_error or other.first_error
        self.first_sent = min((at for at in (self.first_sent, other.first_sent) if at), default=0)
        self.last_ended = max(self.last_ended, other.last_ended)
        for name in ("input_tokens", "output_tokens", "num_uncounted", "num_other_length"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add(self, sent: Sent) -> None:
        """Take in a request that has ended."""
        outcome = sent.outcome
        self.log.add(sent)
        self.kinds[outcome.kind] += 1
        if outcome.ended > self.last_ended:
            self.last_ended = outcome.ended
        if outcome.sent < self.first_sent or not self.first_sent:
            self.first_sent = outcome.sent
        if outcome.status == "ok":
            self._add_tokens(sent)
        elif not self.first_error and outcome.kind != "cancelled":
            self.first_error = outcome.error_message

    def _add_tokens(self, sent: Sent) -> None:
        reply, output_tokens = sent.outcome.reply, sent.outcome.output_tokens
        self.input_tokens += reply.prompt_tokens or 0
        self.output_tokens += output_tokens
        if reply.completion_tokens is None:
            self.num_uncounted += 1
        elif output_tokens != sent.prepared.planned.output_tokens:
            self.num_other_length += 1
