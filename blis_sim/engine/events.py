"""Events of the engine. Events report changes; tokens are derived from steps, never reported one by one.

Every event carries the instant it happened on the engine's clock, whenever it is read. No event is changed after it is
made; the classes are not frozen because that would triple the cost of making one.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TypeAlias

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.kv_cache.changes import CacheChange
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros


@dataclass(slots=True)
class Scheduled:
    """A request joined the running batch (again, if it was preempted before)."""

    at: Micros
    sequence: Sequence


@dataclass(slots=True)
class Preempted:
    """A request lost its KV blocks and went back to the front of the wait queue."""

    at: Micros
    sequence: Sequence


@dataclass(slots=True)
class StepDone:
    """A step ended and each of `emitted` has more tokens: all up to number `sequence.tokens_at(index)`, from 1.

    One more, or with speculative decoding several. The sequences are in batch order. Their first token is the one that
    ends prefill.
    """

    at: Micros
    index: int
    started_at: Micros
    emitted: SequenceOf[Sequence]


@dataclass(slots=True)
class StepsDone:
    """Steps from index `first` on ended at `ends`, and in each of them each of `emitted` had one token more.

    Reported instead of as many `StepDone` to drivers that allow leaps.
    """

    ends: SequenceOf[Micros]
    first: int
    emitted: SequenceOf[Sequence]

    @property
    def at(self) -> Micros:
        """Return the instant at which the last of them ended."""
        return self.ends[-1]


@dataclass(slots=True)
class BatchDone:
    """The batch of a step that ended, and the KV cache behind it. Only reported on request, before its `StepDone`."""

    at: Micros
    index: int
    started_at: Micros
    shape: BatchShape
    prompts: SequenceOf[tuple[Sequence, int]]
    """Sequences that had no output token before the step, each with the number of tokens that the step computed."""
    decoding: SequenceOf[Sequence]
    """All other sequences that the step computed."""
    num_used_blocks: int
    """KV blocks in use until the step ended."""
    num_blocks_after: int
    """KV blocks in use when the sequences that it completed had given theirs back."""
    stages: SequenceOf[tuple[Micros, Micros]] = ()
    """Instants at which it entered and left each pipeline stage; empty for a single stage."""


@dataclass(slots=True)
class Finished:
    """A request ended, with the reason. For a completed one this is the end of its last step."""

    at: Micros
    sequence: Sequence
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CacheChanged:
    """The prefix cache holds other content than at the end of the step before. Only reported with
    `reports_kv_changes`."""

    at: Micros
    changes: SequenceOf[CacheChange]


Event: TypeAlias = Scheduled | Preempted | BatchDone | StepDone | StepsDone | Finished | CacheChanged

__all__ = [
    "BatchDone",
    "CacheChanged",
    "Event",
    "Finished",
    "Outcome",
    "Preempted",
    "Scheduled",
    "Sequence",
    "StepDone",
    "StepsDone",
]
