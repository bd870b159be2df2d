"""The sequences that an instance decodes, held once for all batches that decode the same ones.

The facts of a sequence's latest batch are derived when the sequence leaves: noting them for each sequence of each batch
takes more time than the simulation.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import accumulate, repeat

from blis_sim.engine.delivery import OutputQueue
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from replay.metrics_dir.chrome_trace import MOST_IDS, Place


@dataclass(slots=True)
class Life:
    """One request, or the part of one that computes its prompt elsewhere."""

    number: int
    inter_arrival_s: float | None = None
    scheduled_at: Micros | None = None
    """When it first joined a batch."""
    executed_us: Micros = 0
    """The time of its batches, those in which its cohort decoded excepted. While a group has the sequence, the time of
    the group's batches before is subtracted, and all of the group's time is to be added."""
    first: Place | None = None
    prompt: Place | None = None
    """The batch that completed its prompt."""
    prompt_end_us: Micros = 0
    last: Place | None = None
    first_wait_us: Micros = 0
    """Wait of the first token of a request for the others of its step."""
    last_wait_us: Micros = 0
    group: "DecodeGroup | None" = None
    """The group that has the sequence now."""


class DecodeGroup:
    """The sequences that the latest batch of one instance decoded."""

    __slots__ = (
        "_first_wait_us",
        "_members",
        "_place",
        "_positions",
        "_sequences",
        "_waits_us",
        "counts_time",
        "executed_us",
        "numbers",
        "queue",
    )

    def __init__(self, latency: LatencyModel, *, counts_time: bool) -> None:
        self.queue = OutputQueue(latency)
        """The API server process of the instance."""
        self.counts_time = counts_time
        """Whether lives count the time of these batches; where a cohort decodes, the log of steps has it."""
        self.executed_us: Micros = 0
        """The time of all batches so far."""
        self.numbers: list[int] = []
        """Numbers of the first requests, as many as a timeline shows."""
        self._sequences: SequenceOf[Sequence] = []
        self._members: dict[Sequence, int] = {}
        """Sequences of `_sequences` that have not left since, with the numbers of their requests."""
        self._positions: dict[Sequence, int] = {}
        """Positions in `_sequences`; empty until one leaves."""
        self._place: Place | None = None
        self._first_wait_us: float | None = None
        """Wait of the tokens of the latest batch for those before them; None while its tokens are not known."""
        self._waits_us: list[float] = []
        """Waits of these tokens, from none to all of them; empty until one is needed."""

    def compute(
        self, sequences: SequenceOf[Sequence], place: Place, duration_us: Micros, life_of: Callable[[Sequence], Life]
    ) -> None:
        """Note that the next batch decoded `sequences`."""
        members = self._members
        if len(members) != len(sequences) or sequences != self._sequences:
            remaining = set(sequences)
            for sequence in members.keys() - remaining:
                self.leave(sequence, life_of(sequence))
            for sequence in remaining - members.keys():
                self._join(sequence, life_of(sequence))
            self._sequences, self._positions = sequences, {}
            self.numbers = list(map(members.__getitem__, sequences[:MOST_IDS]))
        self._place = place
        self._first_wait_us, self._waits_us = None, []
        if self.counts_time:
            self.executed_us += duration_us

    def emit(self, wait_us: float) -> None:
        """Note how long the tokens of the latest batch wait before the first of them is handed out."""
        self._first_wait_us = wait_us

    def waits_us(self) -> list[float]:
        """Return the waits of the tokens of the latest batch: before the first, and after each of them."""
        if not self._waits_us and self._first_wait_us is not None:
            turns_us = repeat(self.queue.turn_us, len(self._sequences))
            self._waits_us = list(accumulate(turns_us, initial=self._first_wait_us))
        return self._waits_us

    def leave(self, sequence: Sequence, life: Life) -> None:
        """Let a sequence have the facts of its latest batch."""
        life.group, life.last = None, self._place
        life.executed_us += self.executed_us
        self._members.pop(sequence, None)
        waits_us = self.waits_us()
        if waits_us:
            if not self._positions:
                self._positions = {each: position for position, each in enumerate(self._sequences)}
            life.last_wait_us = int(waits_us[self._positions[sequence] + 1])

    def _join(self, sequence: Sequence, life: Life) -> None:
        if life.group is not None:
            life.group.leave(sequence, life)
        life.group = self
        self._members[sequence] = life.number
        life.executed_us -= self.executed_us
