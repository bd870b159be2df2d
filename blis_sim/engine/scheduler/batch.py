"""The base of schedulers that compose steps: the loop that takes them, one composed step, and media to encode."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeAlias

from blis_sim.engine.batch_shape import BatchShape, decodes, new_shape
from blis_sim.engine.compilation import mypyc_attr
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.context import MAX_INSTANT_US, EngineContext, too_late
from blis_sim.engine.events import BatchDone, Event, EventKind, Finished, Scheduled, StepDone, StepsDone
from blis_sim.engine.kv_cache.block_pool import FreeBlockRuns, PagedCache
from blis_sim.engine.kv_cache.vllm_cache import CountingKVCache
from blis_sim.engine.latency.decode_sums import STEPS_PER_RUN
from blis_sim.engine.request import EncoderLimits, Medium
from blis_sim.engine.scheduler.cohort import DecodeCohort, MemberBlocks, no_blocks, no_hold, running_number
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.scheduler.policies import ORDERS
from blis_sim.engine.sequence import DecodeSpan, Sequence
from blis_sim.engine.units import Micros

if TYPE_CHECKING:
    from blis_sim.engine.scheduler.group_cohort import GroupCohort

# A composed step: the sequences that may join it, the tokens that sequences compute in it, and the sums that a
# latency model sees.
#
# `BatchGrowth`: until a batch of some size has been sampled, memory for it is missing, and providing it waits for
# everything that the GPU was given. Seen in recordings of a server on which load came suddenly: first tokens came
# together with those of the next step as long as batches grew, and hardly ever later. That memory is the cause is
# inferred.

NO_DISPLACED: list[Sequence] = []
"""Result of `prepare` where no sequence loses its place. The list is never changed."""


class Admission(Enum):
    """Whether a waiting sequence may join the batch."""

    NOW = 0
    LATER = 1
    """The request must wait, but requests behind it may join."""
    BLOCKED = 2
    """Too few KV blocks are free for the request, so that those behind it wait, too."""


def num_external_tokens(sequence: Sequence) -> int:
    """Return the tokens that another instance computed, 0 after a preemption. The last token is computed here."""
    external = sequence.request.external
    if external is None or sequence.num_preemptions:
        return 0
    return min(external.num_tokens, sequence.num_tokens - 1)


@dataclass(slots=True)
class ScheduledTokens:
    """Tokens that one sequence computes in a step, and whether the step will sample a token for it."""

    sequence: Sequence
    num_tokens: int
    context_tokens: int
    """Computed before the step, those in flight included."""
    known_tokens: int
    """Prompt and output that existed when the step was composed."""
    samples: bool


ScheduledStep: TypeAlias = tuple[int, int, list[ScheduledTokens], list[Sequence]]
"""Number of sequences of the cohort that decode, sum of their contexts, and tokens of other sequences. Newcomers to the
cohort compute their whole prompts."""

NO_TOKENS: Final[list[ScheduledTokens]] = []
"""Tokens of steps in which only the cohort and newcomers to it compute. The list is never changed."""
NO_NEWCOMERS: Final[list[Sequence]] = []
"""Newcomers of all other steps. The list is never changed."""


def shape_of(step: ScheduledStep, recent_prompt_tokens: int) -> BatchShape:
    """Return the shape of a step for the latency model."""
    num_decodes, context, tokens, newcomers = step
    if tokens or not newcomers:
        return batch_shape(tokens, num_decodes, context, recent_prompt_tokens)
    if len(newcomers) == 1:  # as mostly
        new = newcomers[0].input_tokens
        work = new * new
        return new_shape(BatchShape, (1, new, work, 0, 0, work, num_decodes, context, recent_prompt_tokens, 0))
    num_tokens = squares = 0
    for sequence in newcomers:
        new = sequence.input_tokens
        num_tokens += new
        squares += new * new
    figures = len(newcomers), num_tokens, squares, 0, 0, squares, num_decodes, context, recent_prompt_tokens, 0
    return new_shape(BatchShape, figures)


def batch_shape(
    tokens: list[ScheduledTokens], num_decodes: int, decode_contexts: int, recent_prompt_tokens: int
) -> BatchShape:
    """Return the sums over a step's tokens and `num_decodes` more decodes. Cost: O(tokens)."""
    prefills = new_tokens = squares = contexts = context_work = prompt_work = 0
    for each in tokens:
        new, context = each.num_tokens, each.context_tokens
        if context < each.sequence.input_tokens or new > 1:
            prefills += 1
            new_tokens += new
            squares += new * new
            contexts += context
            context_work += new * context
            prompt_work += new * each.known_tokens
        elif new:
            num_decodes += 1
            decode_contexts += context
    recent = recent_prompt_tokens if new_tokens else 0
    return BatchShape(
        prefills, new_tokens, squares, contexts, context_work, prompt_work, num_decodes, decode_contexts, recent
    )


def last_token(sequence: Sequence) -> ScheduledTokens:
    """Return the token of a cohort member as `ScheduledTokens`."""
    return ScheduledTokens(sequence, 1, 0, 0, samples=True)


def batch_order(tokens: ScheduledTokens) -> int:
    """Orders the tokens of a step as the sequences stand in the batch."""
    return tokens.sequence.running_number


class BatchGrowth:
    """The largest batch so far, in multiples of `multiple` requests."""

    __slots__ = ("_most", "_multiple")

    def __init__(self, multiple: int) -> None:
        self._multiple = multiple
        self._most = 0

    def is_exceeded(self, step: ScheduledStep) -> bool:
        """Return whether a step with prompts samples for more requests than any before; it then counts as the
        largest."""
        num_decodes, _, tokens, newcomers = step
        if not tokens and not newcomers:
            return False
        num_requests = num_decodes + len(newcomers) + sum(each.samples for each in tokens)
        if num_requests <= self._most:
            return False
        self._most = -(-num_requests // self._multiple) * self._multiple
        return True


# Steps in which the same sequences decode, taken many at once.

MIN_STEPS_AT_ONCE: Final = 4
"""Least steps of a leap: fewer are cheaper one by one."""
FEW_STEPS: Final = 32
"""Fewer steps are cheaper in a list than in an array, where their sums are not kept."""
MAX_STEPS_AT_ONCE: Final = 1 << 16
MAX_REPEATED_STEPS: Final = 64
"""Most steps reported in one event: they are also sent at once, so a larger number is of no use."""


class MultiStep:
    """Takes steps of an engine in which no request joins or leaves. About 3 us, however many, where few decode."""

    __slots__ = ("_context", "_decode_times", "_sums", "_times_of_few")

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._decode_times = context.latency.decode_times
        self._sums = context.latency.decode_sums
        self._times_of_few = context.latency.few_decodes_timer()

    def take(
        self, at: Micros, last: Micros, num_sequences: int, context_tokens: int, most: int
    ) -> tuple[int, Micros, Micros]:
        """Take up to `most` steps from `at` on, the first with so many context tokens, each of which starts by `last`.

        Returns how many, and start and end of the last one.
        """
        run, first = self._sums.find(self._decode_times, num_sequences, context_tokens)
        if run is None:
            return self._take_unknown(at, last, num_sequences, context_tokens, most)
        shift = at - run[first]
        if (end := first + most) > STEPS_PER_RUN:
            end = STEPS_PER_RUN
        ends_at = run[end] + shift
        if ends_at > last:
            end = bisect_right(run, last - shift, first + 1, end)
            ends_at = run[end] + shift
        if ends_at > MAX_INSTANT_US:
            raise too_late(at)
        self._context.steps.extend_shifted(at, run[first + 1 : end + 1], shift)
        return end - first, run[end - 1] + shift, ends_at

    def _take_unknown(
        self, at: Micros, last: Micros, num_sequences: int, context_tokens: int, most: int
    ) -> tuple[int, Micros, Micros]:
        times_of_few = self._times_of_few
        if most < FEW_STEPS and times_of_few is not None:
            times = times_of_few(num_sequences, context_tokens, most)
            instants = list(accumulate(times, initial=at))
            if instants[-1] > last:
                del instants[bisect_right(instants, last, 1) + 1 :]
            count, started_at, ends_at = len(instants) - 1, instants[-2], instants[-1]
            self._context.steps.move_contiguous(instants)
            return count, started_at, ends_at
        ends = self._decode_times(decodes(num_sequences, context_tokens), most).cumsum()
        ends += at
        ends = ends[: int(ends.searchsorted(last, side="right")) + 1]
        self._context.steps.extend(at, ends)
        count = len(ends)
        return count, int(ends[-2]) if count > 1 else at, int(ends[-1])


# Choice of media to encode in the next step, and of encoded media to keep, by the rules of vLLM 0.33's scheduler.
#
# Facts: vllm/v1/core/sched/scheduler.py, `_try_schedule_encoder_inputs` and `_free_encoder_inputs`;
# vllm/v1/core/encoder_cache_manager.py, `EncoderCacheManager`.


class EncoderCache:
    """Encoded media by identity, with the sequences that refer to each. Those without any are evicted, oldest first."""

    def __init__(self, num_tokens: int) -> None:
        self._holders: dict[object, set[Sequence]] = {}
        self._sizes: dict[object, int] = {}
        self._free: dict[object, int] = {}
        """Encoded media to which no sequence refers, oldest first, with their tokens."""
        self._places: dict[Sequence, set[int]] = {}
        """Numbers of the media of a sequence that it refers to."""
        self.num_unused_tokens = self.num_free_tokens = num_tokens

    def add_reference(self, sequence: Sequence, number: int, identity: object) -> bool:
        """Let a sequence refer to an encoded medium. False where it is not encoded."""
        holders = self._holders.get(identity)
        if holders is None:
            return False
        if not holders:
            self.num_free_tokens -= self._free.pop(identity)
        holders.add(sequence)
        self._places.setdefault(sequence, set()).add(number)
        return True

    def has_references(self, sequence: Sequence) -> bool:
        return sequence in self._places

    def grow(self, num_tokens: int) -> None:
        self.num_unused_tokens += num_tokens
        self.num_free_tokens += num_tokens

    def make_room(self, num_tokens: int) -> bool:
        """Evict media to which no sequence refers until `num_tokens` tokens fit. Returns whether they fit."""
        if num_tokens <= self.num_unused_tokens:
            return True
        if num_tokens > self.num_free_tokens:
            return False
        while num_tokens > self.num_unused_tokens:
            identity = next(iter(self._free))
            self.num_unused_tokens += self._free.pop(identity)
            del self._holders[identity], self._sizes[identity]
        return True

    def add(self, sequence: Sequence, number: int, medium: Medium) -> None:
        self._holders.setdefault(medium.identity, set()).add(sequence)
        self._sizes[medium.identity] = medium.num_tokens
        self._places.setdefault(sequence, set()).add(number)
        self.num_unused_tokens -= medium.num_tokens
        self.num_free_tokens -= medium.num_tokens

    def release_until(self, sequence: Sequence, num_tokens: int) -> None:
        """Let a sequence refer no more to media that lie within its first `num_tokens` tokens."""
        places = self._places.get(sequence)
        if not places:
            return
        media = sequence.request.media
        for number in list(places):
            if media[number].end <= num_tokens:
                self._release(sequence, places, number, media)

    def release(self, sequence: Sequence) -> None:
        """Let a sequence refer to no medium any more."""
        places = self._places.get(sequence)
        if places:
            for number in list(places):
                self._release(sequence, places, number, sequence.request.media)

    def _release(self, sequence: Sequence, places: set[int], number: int, media: tuple[Medium, ...]) -> None:
        places.discard(number)
        if not places:
            del self._places[sequence]
        identity = media[number].identity
        holders = self._holders.get(identity)
        if not holders or any(media[other].identity == identity for other in places):
            return
        holders.discard(sequence)
        if not holders:
            self._free[identity] = self._sizes[identity]
            self.num_free_tokens += self._sizes[identity]


class MediaEncoder:
    """Shortens what a sequence computes in a step where its media cannot be encoded in time."""

    def __init__(self, limits: EncoderLimits, num_ahead_tokens: int) -> None:
        """`num_ahead_tokens` are the tokens after those of a step that a drafter reads."""
        self._step_tokens, self._cache_tokens = limits.step_tokens, limits.cache_tokens
        self._longest_whole = 0 if limits.splits_media else limits.step_tokens
        """Most tokens of a medium whose prompt is not split between steps."""
        self._ahead = num_ahead_tokens
        self._cache = EncoderCache(limits.cache_tokens)
        self._budget = 0
        self._chosen: list[int] = []
        self._repeated: list[int] = []
        self._taken: dict[Sequence, int] = {}
        """Tokens of media to be encoded in the step being composed, by sequence."""

    def new_step(self) -> None:
        """Begin the composition of a step."""
        self._budget = self._step_tokens
        self._taken.clear()

    def clip(self, sequence: Sequence, computed: int, num_tokens: int) -> int:
        """Return how many of the next `num_tokens` tokens can be computed after `computed`, and choose what to encode
        for them."""
        self._chosen, self._repeated = [], []
        if num_tokens < 1:
            return num_tokens
        media, cache = sequence.request.media, self._cache
        identities: set[object] = set()
        num_chosen = 0
        window_end = computed + num_tokens + self._ahead
        first = bisect_left(media, computed + 1, key=lambda medium: medium.end)
        for number in range(first, bisect_left(media, window_end, key=lambda medium: medium.offset)):
            medium = media[number]
            start = medium.offset
            if medium.num_tokens <= self._longest_whole and computed <= start and computed + num_tokens < medium.end:
                num_tokens = max(0, start - (computed + self._ahead))
                break
            if medium.identity in identities:
                self._repeated.append(number)
                continue
            if cache.add_reference(sequence, number, medium.identity):
                continue
            size = medium.num_tokens
            if size > self._step_tokens or size > self._cache_tokens:
                self._grow(size)
            if size > self._budget - num_chosen or not cache.make_room(size + num_chosen):
                num_tokens = min(num_tokens, start - computed) if computed < start else 0
                break
            num_chosen += size
            identities.add(medium.identity)
            self._chosen.append(number)
        return num_tokens

    def _grow(self, size: int) -> None:
        """Raise the limits to the size of a medium: vLLM's are at least that of the largest medium of a model."""
        if size > self._step_tokens:
            self._budget += size - self._step_tokens
            self._step_tokens = size
        if size > self._cache_tokens:
            self._cache.grow(size - self._cache_tokens)
            self._cache_tokens = size

    def take(self, sequence: Sequence) -> None:
        """Encode what `clip` has just chosen: the sequence computes in this step."""
        media = sequence.request.media
        if not media:
            return
        for number in self._chosen:
            self._cache.add(sequence, number, media[number])
        for number in self._repeated if self._chosen else ():
            self._cache.add_reference(sequence, number, media[number].identity)
        if self._chosen:
            taken = sum(media[number].num_tokens for number in self._chosen)
            self._taken[sequence] = taken
            self._budget -= taken

    def give_back(self, sequence: Sequence) -> None:
        """Give the encoder's tokens back that a sequence took in this step, before it lost its place."""
        self._budget += self._taken.pop(sequence, 0)

    def processed(self, sequence: Sequence) -> None:
        """Let a sequence refer no more to media that its KV cache holds for good: one of its steps has ended."""
        self._cache.release_until(sequence, sequence.num_computed_tokens - sequence.num_placeholders)

    def release(self, sequence: Sequence) -> None:
        self._cache.release(sequence)

    def has_references(self, sequence: Sequence) -> bool:
        return self._cache.has_references(sequence)


def new_encoder(config: EngineConfig) -> MediaEncoder:
    """Return the encoder of an engine. By default it computes and keeps as many tokens as a step may have."""
    most = config.max_num_batched_tokens
    limits = config.encoder or EncoderLimits(step_tokens=most, cache_tokens=most)
    reads_ahead = config.speculation is not None and config.speculation.reads_ahead
    return MediaEncoder(limits, int(reads_ahead))


# The base of schedulers that compose steps of sequences: the loop that takes steps, and what all rule sets share.
#
# A step is composed of the cohort first, then of other sequences, then of newcomers. Steps in which only the cohort
# computes are taken many at once.


@mypyc_attr(allow_interpreted_subclasses=True)
class BatchScheduler(ABC):
    """Takes steps of which up to `depth` are in flight: one executes, the others are already composed.

    A subclass composes steps in `schedule` and processes their outputs. The time between steps is zero. Steps are
    composed in order of admission, though the cohort comes first where that changes nothing. Without a cohort every
    sequence is granted its tokens one by one, with equal results.
    """

    __slots__ = (
        *(
            "_admits",
            "_block_size",
            "_blocked",
            "_blocks",
            "_budget",
            "_by_priority",
            "_calendar",
            "_composes",
            "_config",
        ),
        *("_context", "_counts_taken_blocks", "_decode_time", "_depth", "_drafter_rows", "_encoder", "_ends_early"),
        *("_executing", "_free", "_granted", "_growth", "_had_prefill", "_has_deadlines", "_hold_prompt", "_is_late"),
        *("_late", "_limit", "_limits_admission", "_longest_joining", "_max_decode_only", "_max_decodes"),
        *("_most_running", "_must_update", "_names", "_newcomer_placeholders", "_num_admissions", "_order"),
        *("_planned", "_prompt_blocks", "_reports_steps", "_resumes", "_steps", "_take_blocks"),
        *("_threshold_when_alone", "_token_budget", "_watermark_blocks", "admitted", "cohort", "explicit"),
        *("has_cohort", "in_flight", "next_step", "preempted", "shape_of", "takes_newcomers", "waiting"),
    )

    def __init__(
        self,
        context: EngineContext,
        reports_steps: bool,
        depth: int,
        limit_tokens: int,
        blocks: PagedCache,
        member_blocks: MemberBlocks | None,
    ) -> None:
        """`blocks` are those of all sequences; `member_blocks` are the same for the cohort, None without one."""
        config = context.config
        has_cohort = member_blocks is not None
        self._token_budget = config.token_budget
        """Tokens of a whole step."""
        self._context = context
        self._depth = depth
        self._max_decodes = self._token_budget if has_cohort else -1
        """With more decodes the order of admission decides which of them fit the budget."""
        self._most_running = config.max_num_seqs
        self._free = FreeBlockRuns(0)
        self._take_blocks: Callable[[int], None] = no_blocks
        self._hold_prompt: Callable[[Sequence, int], int] = no_hold
        if member_blocks is not None:
            self._free, self._take_blocks = member_blocks.free, member_blocks.take
            self._hold_prompt = member_blocks.hold_prompt
        self._max_decode_only = self._max_decodes
        """`max_decodes` where members of the cohort take blocks by their sums alone, else 0."""
        self._counts_taken_blocks = False
        """Whether the cache counts every block that is taken."""
        self._block_size = config.block_size_tokens
        self.cohort = DecodeCohort(self._block_size)
        self._calendar: GroupCohort | None = None
        """The cohort, where blocks of its members change in steps that a calendar has."""
        self.explicit: list[Sequence] = []
        """Running and not in the cohort, in order of admission."""
        self.waiting: deque[Sequence] = deque()
        self.preempted: list[Sequence] = []
        """Sequences preempted by the latest `schedule`."""
        self.in_flight: deque[ScheduledStep] = deque()
        """Steps that have not ended, at most `depth`."""
        self.next_step = 0
        """Index of the step to be composed next."""
        self._admits = True
        """Whether waiting sequences may join."""
        self._composes = True
        """Whether steps may be composed."""
        self._names: CountingKVCache | None = None
        """Names the blocks of members that other requests may find; None where no such sequence may be a member."""
        self._blocked: tuple[Sequence, int, int] | None = None
        """The sequence that found too few blocks, the length of the queue and the number of cache changes then."""
        self._must_update = False
        """Whether the end of the executing step changes more than the number of tokens."""
        self._reports_steps = reports_steps
        self._steps = MultiStep(context)
        self._executing = False
        """Whether the first step in flight has begun."""
        self._planned = False
        self._ends_early = False
        """Whether the outputs of a step are processed when it begins, and only reported when it ends."""
        self._decode_time = context.latency.decode_timer()
        self._has_deadlines = False
        """Whether `note_deadline` has anything to do."""
        self._growth: BatchGrowth | None = None
        """The largest batch so far, where larger ones make the host wait."""
        self._is_late = False
        """Whether the outputs of the first step in flight are processed when the second one ends."""
        self.has_cohort = has_cohort
        self.takes_newcomers = True
        """Whether `compose_newcomers` may decide, which takes the queue as it is."""
        self.admitted: list[Sequence] = []
        """Sequences that joined the batch in the latest `schedule`."""
        self._config = config
        self._encoder = new_encoder(config)
        self._limit = limit_tokens
        self._order = ORDERS[config.scheduler]
        self._by_priority = config.preemption_policy != "fcfs"
        self._longest_joining = min(limit_tokens - 2, config.long_prefill_token_threshold or limit_tokens)
        """Most tokens of a prompt that joins the cohort at once beside others, with two output tokens to come."""
        self._limits_admission = type(self).may_admit is not BatchScheduler.may_admit
        """Whether waiting sequences may have to wait though places in the batch are free."""
        self._resumes = False
        """Whether sequences after one that evicted itself may compute in the same step."""
        self._blocks = blocks
        self._newcomer_placeholders = 0
        """Output tokens that the step of a prompt is to produce, where they are counted."""
        self._watermark_blocks = 0
        self.shape_of: Callable[[ScheduledStep, int], BatchShape] = shape_of
        """Returns what the latency model sees of a step, after so many recent prompt tokens."""
        self._prompt_blocks: Callable[[Sequence], int] | None = None
        """Blocks of a whole prompt that is not shared, where layers differ; negative where it must be split."""
        self._drafter_rows = 0
        """Tokens of the budget that a drafter takes for each granted sequence."""
        self._threshold_when_alone = True
        """Whether a prompt is split by the long-prefill threshold when no other sequence is there."""
        self._budget = self._num_admissions = 0
        self._granted: dict[Sequence, int] = {}
        self._had_prefill = False
        self._late: dict[int, list[ScheduledTokens]] = {}
        """Tokens in flight, by step, of sequences that were in the cohort when that step was composed."""

    # --- the rules of a subclass ---

    @abstractmethod
    def schedule(self, at: Micros) -> bool:
        """Compose one step behind those in flight. False when no sequence can be granted a token now."""

    @abstractmethod
    def next_tokens(self, sequence: Sequence) -> int:
        """How many tokens a running sequence would compute in the next step, within the budget."""

    @abstractmethod
    def preempt(self, victim: Sequence) -> None:
        """Send a sequence that runs no more to the front of the queue."""

    @abstractmethod
    def choose_victim(self) -> int:
        """The index in `explicit` of the sequence to be preempted."""

    @abstractmethod
    def blocks_lacking(self, sequence: Sequence, num_tokens: int) -> int:
        """New blocks that a sequence needs for so many more tokens. Only with a cohort."""

    @abstractmethod
    def stays_without_blocks(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether a waiting sequence that finds so many blocks cannot join before some are given back."""

    def may_admit(self) -> bool:
        """Whether waiting sequences may join beside those that run. Only admissions and endings may change it."""
        return True

    def takes_reservation(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence held blocks and has lost them for the sake of a running one."""
        return False

    @abstractmethod
    def begin(self, step: ScheduledStep, at: Micros) -> Micros:
        """Begin a step in which not only the cohort computes, or none does. Returns its end."""

    @abstractmethod
    def process(
        self, tokens: ScheduledTokens, step_index: int, at: Micros, emitted: list[Sequence], finished: list[Event]
    ) -> None:
        """One sequence's share of a step: its token, and whether that was the last."""

    @abstractmethod
    def give_first_tokens(self, newcomers: list[Sequence], step_index: int, at: Micros) -> list[Sequence]:
        """The step that computed the prompts of newcomers to the cohort ended. Returns those with a token from it."""

    @abstractmethod
    def complete(self, sequence: Sequence, at: Micros, finished: list[Event]) -> None:
        """The last token of a sequence has come."""

    @abstractmethod
    def join_cohort(self) -> None:
        """Let sequences that only decode join the cohort."""

    @abstractmethod
    def leave_cohort(self, sequence: Sequence) -> None:
        """Let a member leave the cohort. Its tokens in flight are processed as those of other sequences."""

    @property
    def takes_only_empty_steps(self) -> bool:
        """Whether every step is empty until something other than a step is due."""
        return False

    def repeat_empty_step(self, at: Micros, ends_at: Micros, last: Micros) -> tuple[Micros, Micros]:
        return at, ends_at

    def left_stages(self) -> list[tuple[Micros, Micros]]:
        """Return when the first step in flight entered and left each pipeline stage; none with a single stage."""
        return []

    def note_deadline(self, sequence: Sequence) -> None:
        """Note the deadline of a request that begins to wait. Only called with `_has_deadlines`."""
        raise NotImplementedError

    # --- what the engine calls ---

    @property
    def num_running(self) -> int:
        return len(self.explicit) + len(self.cohort.members)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def num_processed(self) -> int:
        """Index of the first step whose outputs have not been processed."""
        return self.next_step - len(self.in_flight)

    @property
    def num_begun_steps(self) -> int:
        return self.next_step - len(self.in_flight) + self._executing + self._is_late

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        if self._has_deadlines:
            self.note_deadline(sequence)
        self.waiting.append(sequence)
        if not self.in_flight:
            self._plan(at)

    def set_pause_state(self, pause_state: PauseState, at: Micros) -> None:
        self._admits = pause_state is PauseState.NONE
        self._composes = pause_state is not PauseState.EVERYTHING
        if not self.in_flight:
            self._plan(at)

    def step(self, at: Micros) -> None:
        self._planned = False
        if self._executing:
            self._compose(at)
        else:
            self._multi_step(at, self._last_free_instant())

    def step_ended(self, report: object, at: Micros) -> None:
        if self._ends_early:
            assert isinstance(report, list)
            self._context.events += report
            return
        self._executing = False
        if self._is_late:
            if (ends_at := self._update_late(at, [at])) is not None:
                self._pause(ends_at, at, [at, ends_at])
                return
        else:
            self._context.events += self.update(at)
        last = self._last_free_instant()
        if last >= at:
            self._multi_step(at, last)
            return
        if self.in_flight:
            ends_at = self._begin(at)
            self._pause(ends_at, at, [at, ends_at])
        self._plan(at)  # what else is due at this instant comes first

    # --- step after step ---

    def _plan(self, at: Micros) -> None:
        """Compose at `at`, after everything else of that instant."""
        if not self._planned:
            self._planned = True
            self._context.queue.push(at, EventKind.STEP)

    def _multi_step(self, at: Micros, last: Micros) -> None:  # noqa: C901 - one loop: calls would double its cost
        """Take steps from `at` on, at which none executes, up to the first that ends after `last`."""
        in_flight, cohort, waiting, depth, growth = self.in_flight, self.cohort, self.waiting, self._depth, self._growth
        needs, members, size, ends, free = cohort.needs, cohort.members, self._block_size, cohort.ends, self._free
        decode_time, most_decodes, most_running = self._decode_time, self._max_decode_only, self._most_running
        ends_early, reports_steps, counts_taken = self._ends_early, self._reports_steps, self._counts_taken_blocks
        most_calm, num_decodes, context, joins_freely = 0, 0, 0, self._admits and not self._limits_admission
        tokens, newcomers, index, instants = NO_TOKENS, NO_NEWCOMERS, self.next_step - len(in_flight), [at]
        while True:
            num_next, num_blocks = cohort.num_decodes, needs[(step := self.next_step) % size]
            may_join = waiting and len(members) < most_running
            if may_join or num_next > most_calm or not num_next or num_blocks > free.num_next:
                joins = may_join and 0 < most_calm >= num_next and joins_freely and self._blocked is None
                is_composed = self.compose_newcomers(at) if joins else not self.explicit and self.compose_cohort(at)
                if not is_composed or len(in_flight) < depth:
                    self._compose(at)
                    if not in_flight:
                        self._stop(at, instants, 0 if tokens or newcomers else num_decodes, context)
                        return
                    most_calm = most_decodes if self._is_decode_only() else 0
                elif not most_calm and self._is_decode_only():
                    most_calm = most_decodes
            else:  # as in `compose_cohort`
                if counts_taken:
                    self._take_blocks(num_blocks)
                elif num_blocks:  # as `CountingKVCache.take` takes them
                    free.num_next -= num_blocks
                    free.num_free -= num_blocks
                in_flight.append((num_next, cohort.offset + num_next * step, NO_TOKENS, NO_NEWCOMERS))
                self.next_step = step + 1
                if step in ends:
                    cohort.composed(step)
            num_decodes, context, tokens, newcomers = in_flight[0]
            if tokens or newcomers or not num_decodes:
                ends_at = self.begin(in_flight[0], at)
            else:
                ends_at = at + (step_us := decode_time(num_decodes, context))
                if ends_at < last and num_decodes == cohort.num_decodes:
                    most = (last - at) // step_us + 1  # contexts grow, so no more begin by `last`
                    if most >= MIN_STEPS_AT_ONCE and (most := self._num_equal_steps(most)) >= MIN_STEPS_AT_ONCE:
                        at, ends_at, context, index = self._take_many_steps(at, last, most, instants)
            instants.append(ends_at)
            if ends_early or (growth is not None and len(in_flight) > 1 and growth.is_exceeded(in_flight[1])):
                at, last = (self._end_early if ends_early else self._end_late)(ends_at, at, last, instants)
                if at > last:
                    return
                index, most_calm = self.next_step - len(in_flight), most_calm if self._is_decode_only() else 0
                continue
            if ends_at > last and (ends_at > self._context.until or ends_at > (last := self.caught_up(ends_at))):
                self._pause(ends_at, at, instants)
                return
            at = ends_at
            if tokens or self._must_update or reports_steps:
                self._context.steps.move_contiguous(instants)
                self._context.events += self.update(at)
            else:
                in_flight.popleft()  # what `update` does, where no more is to do
                if newcomers or index in ends:
                    self._give_outputs(newcomers, index, at)
            index += 1

    def _give_outputs(self, newcomers: list[Sequence], index: int, at: Micros) -> None:
        """Process the first tokens and the last tokens that the step of this index brought to members at `at`."""
        if newcomers:
            self.give_first_tokens(newcomers, index, at)
        if index in self.cohort.ends:
            for sequence in self.cohort.pop_ended(index):
                self.complete(sequence, at, self._context.events)

    def _is_decode_only(self) -> bool:
        """Whether the cohort alone computes, and takes blocks by their sums alone."""
        return self._composes and not self.explicit and not self.cohort.num_filling

    def _end_late(self, ends_at: Micros, at: Micros, last: Micros, instants: list[Micros]) -> tuple[Micros, Micros]:
        """Begin the second step in flight at `ends_at`, the end of the first, which began at `at`. Process the outputs
        of both when it ends. The host waits for a step that it has just launched.

        Returns that instant and the last free one; if that is before, nothing more can be done now.
        """
        self._is_late, at = True, ends_at
        next_end: Micros | None = self.begin(self.in_flight[1], at)
        while next_end is not None:
            instants.append(next_end)
            if next_end > last and next_end > (last := self.caught_up(next_end)):
                self._pause(next_end, at, instants)
                return next_end, last
            at = next_end
            next_end = self._update_late(at, instants)
        return at, last

    def _update_late(self, at: Micros, instants: list[Micros]) -> Micros | None:
        """Process the outputs of a step that has long ended, and of the one that ends at `at`.

        The second of them waits as well where the step composed in between is the largest batch so far. That step has
        begun then, and its end is returned.
        """
        self._context.steps.move_contiguous(instants)
        self._context.steps.note_late(self.num_processed, at)
        self._context.events += self.update(at)
        if self.explicit or not self.compose_cohort(at):
            self._compose(at)
        if self._growth is not None and len(self.in_flight) > 1 and self._growth.is_exceeded(self.in_flight[1]):
            return self.begin(self.in_flight[1], at)
        self._is_late = False
        self._context.events += self.update(at)
        return None

    def _compose(self, at: Micros) -> None:
        """Compose steps until `depth` are in flight or nothing can be composed."""
        in_flight = self.in_flight
        if not self._composes:
            return
        note_load = self._context.note_load
        while len(in_flight) < self._depth:
            if note_load is not None:
                note_load(at, False)
            if self.explicit:
                self.join_cohort()
            if not self.explicit and self.compose_cohort(at):
                continue
            if not (self.explicit or self.cohort.members or self.waiting):
                return
            # Evicting alone may be all it does; what that frees can be granted at once.
            if not self.schedule(at) and (in_flight or not self.preempted):
                return

    def _begin(self, at: Micros) -> Micros:
        """Begin the first step in flight. Returns its end."""
        step = self.in_flight[0]
        return self.begin(step, at) if step[2] or step[3] else at + self._decode_time(step[0], step[1])

    def _stop(self, at: Micros, instants: list[Micros], num_decodes: int, context: int) -> None:
        """Stop at `at`, where nothing can be computed after a step in which so many of the cohort decoded, if any."""
        engine_context = self._context
        engine_context.steps.move_contiguous(instants)
        engine_context.clock = max(at, engine_context.clock)
        if num_decodes:
            engine_context.last_shape = decodes(num_decodes, context)

    def _pause(self, ends_at: Micros, at: Micros, instants: list[Micros]) -> None:
        """Wait for the end of the executing step, which began at `at`: something else is due before.

        `instants` are the starts of steps that are not in the log, and the end of the last of these.
        """
        self._context.steps.move_contiguous(instants)
        engine_context = self._context
        num_decodes, context, tokens, newcomers = self.in_flight[0]
        if not tokens and not newcomers:
            engine_context.last_shape = BatchShape(0, 0, 0, 0, 0, 0, num_decodes, context)
        self._executing = True
        engine_context.clock = max(at, engine_context.clock)
        engine_context.queue.push(ends_at, EventKind.STEP_END)

    def _end_early(self, ends_at: Micros, at: Micros, last: Micros, instants: list[Micros]) -> tuple[Micros, Micros]:
        """Process the outputs of the step that began at `at`, to be reported when it ends.

        Returns its end and the last free instant; if that is before, nothing more can be done now. Of `instants`, the
        starts of steps that are not in the log and the end of the last of these, the last one alone stays.
        """
        self._context.steps.move_contiguous(instants)
        engine_context = self._context
        num_decodes, context, tokens, newcomers = self.in_flight[0]
        if not num_decodes and not tokens and not newcomers and ends_at <= last:
            at, ends_at = self.repeat_empty_step(at, ends_at, last)
            instants[0] = ends_at
        events = self.update(ends_at)
        if ends_at <= last:
            engine_context.events += events
            return ends_at, last
        if num_decodes and not tokens and not newcomers:
            engine_context.last_shape = decodes(num_decodes, context)
        has_finished = bool(events) and isinstance(events[-1], Finished)
        self._planned = bool(self.num_running or self.waiting)
        # With nothing left to do, an arrival begins the next step at once, even before this one ends.
        last = self.caught_up(ends_at) if self._planned else self._last_free_instant()
        if ends_at > last:
            engine_context.clock = max(at, engine_context.clock)
            if events:
                engine_context.queue.push(ends_at, EventKind.STEP_END, events)
            if has_finished:
                engine_context.queue.push(ends_at, EventKind.DEPARTURE)
            if self._planned:
                engine_context.queue.push(ends_at, EventKind.STEP)
            return ends_at, last
        self._planned = False
        engine_context.events += events
        return ends_at, last

    def _last_free_instant(self) -> Micros:
        """Up to when steps may be taken without looking at anything else."""
        others_at, until = self._context.queue.next_at(), self._context.until
        return until if others_at is None or others_at > until else others_at - 1

    def caught_up(self, ends_at: Micros) -> Micros:
        """Let requests come and go that do so during a step: they only queue up. Returns the last free instant."""
        engine_context = self._context
        until = engine_context.until
        next_at = engine_context.queue.next_at() if ends_at > until else engine_context.catch_up(ends_at - 1)
        return until if next_at is None or next_at > until else next_at - 1

    # --- the outputs of a step ---

    def update(self, at: Micros) -> list[Event]:
        step_index = self.next_step - len(self.in_flight)
        cohort = self.cohort
        emitted = self._decoding_in(step_index) if self._reports_steps and cohort.members else []
        batches = [self._batch_done(step_index, at, list(emitted))] if self._context.reports_batches else []
        _, _, tokens, newcomers = self.in_flight.popleft()
        finished: list[Event] = []
        ended = cohort.pop_ended(step_index) if step_index in cohort.ends else []
        if self._must_update or (tokens and ended):
            # In batch order, for blocks are reused in the order in which they are given back.
            tokens = [*tokens, *self._late.pop(step_index, ()), *map(last_token, ended)]
            tokens.sort(key=batch_order)
            ended = []
            self._must_update = bool(self._late)
        for each in tokens:
            self.process(each, step_index, at, emitted, finished)
        if newcomers:
            emitted += self.give_first_tokens(newcomers, step_index, at)
        for sequence in ended:
            self.complete(sequence, at, finished)
        if not self._reports_steps:
            return list(finished)
        if self.has_cohort and len(emitted) > 1 and (tokens or newcomers):
            emitted.sort(key=running_number)  # batch order
        for batch in batches:
            batch.num_blocks_after = self._blocks.num_used_blocks
        return [*batches, StepDone(at, step_index, self._context.steps.start(step_index), emitted), *finished]

    def _batch_done(self, step_index: int, at: Micros, cohort: list[Sequence]) -> BatchDone:
        """Return the report of the first step in flight, in which these sequences of the cohort decoded."""
        step = self.in_flight[0]
        prompts: list[tuple[Sequence, int]] = []
        decoding = [*cohort, *(late.sequence for late in self._late.get(step_index, ()))]
        for each in step[2]:
            if each.sequence.outcome is None:  # else computed in vain, before its end was known
                if each.sequence.first_token_step is None:
                    prompts.append((each.sequence, each.num_tokens))
                else:
                    decoding.append(each.sequence)
        prompts += [(sequence, sequence.input_tokens) for sequence in step[3] if sequence.outcome is None]
        started_at, num_used_blocks = self._context.steps.start(step_index), self._blocks.num_used_blocks
        shape, stages = self.shape_of(step, 0), self.left_stages()
        return BatchDone(at, step_index, started_at, shape, prompts, decoding, num_used_blocks, num_used_blocks, stages)

    def _decoding_in(self, step: int) -> list[Sequence]:
        """Members of the cohort that have a token from `step`, in order of admission."""
        found: list[Sequence] = []
        for sequence in self.cohort.members:
            span = sequence.span
            if span is not None and span.first_step <= step <= span.last_step:
                found.append(sequence)
        if len(found) > 1:
            found.sort(key=running_number)
        return found

    # --- the composition of a step ---

    def _grant_cohort(self) -> tuple[int, int]:
        """Grant the cohort its tokens. Returns how many of it decode and the sum of their contexts.

        Without enough blocks the last admitted lose theirs, after all free ones have been given out. The same happens
        when sequences are granted tokens one by one.
        """
        cohort, step = self.cohort, self.next_step
        num_blocks = cohort.needs[step % self._block_size]
        fills = cohort.num_filling > 0
        if not self._can_grant_cohort_first(num_blocks) or (fills and not self._fills_in_admission_order()):
            self.dissolve_cohort()
            return 0, 0
        while True:
            num_taken = min(num_blocks, self._free.num_free)
            self._take_blocks(num_taken)
            num_blocks -= num_taken
            if not num_blocks:
                break
            victim = self.explicit.pop() if self.explicit else max(cohort.members, key=running_number)
            if victim.span is not None:
                num_blocks -= cohort.needs_block(victim, step)
                self.leave_cohort(victim)
            self.preempt(victim)
        if fills:
            self.fill_blocks(step, step + 1)
        num_decodes, context = cohort.num_decodes, cohort.offset + cohort.num_decodes * step
        self._budget -= num_decodes
        if step in cohort.ends:
            cohort.composed(step)
        return num_decodes, context

    def _can_grant_cohort_first(self, num_blocks: int) -> bool:
        """Whether granting tokens to the cohort before all others is the same as granting in order of admission."""
        num_tokens = self._budget - self.cohort.num_decodes
        if num_tokens < 0:
            return False
        if not self._by_priority and self._is_cohort_admitted_first():
            return True
        for sequence in self.explicit:  # is there enough for all?
            if sequence.request.media:
                return False
            num_new_tokens = max(0, self.next_tokens(sequence))
            if num_new_tokens > num_tokens:
                if sequence.running_number != self._num_admissions:
                    return False
                num_new_tokens = num_tokens  # the last admitted gets what the others leave
            num_tokens -= num_new_tokens
            num_blocks += max(0, self.blocks_lacking(sequence, num_new_tokens))
        return num_blocks <= self._free.num_free

    def _grant_explicit(self) -> None:
        index = 0
        running, blocks = self.explicit, self._blocks
        while index < len(running) and self._budget > 0:
            sequence = running[index]
            num_tokens = self.next_tokens(sequence)
            if num_tokens > 0:
                prefilling = sequence.is_prefilling
                if not blocks.allocate(sequence, num_tokens):
                    index = self._preempt_for(sequence, num_tokens, index)
                    if index < 0:
                        return
                    if not sequence.running:
                        if self._resumes:
                            continue
                        return
                self._granted[sequence] = num_tokens
                if sequence.request.media:
                    self._encoder.take(sequence)
                self._budget -= num_tokens + self._drafter_rows
                self._had_prefill |= prefilling
            index += 1

    def _preempt_for(self, sequence: Sequence, num_tokens: int, index: int) -> int:
        """Evict others until there are slots for `sequence`, itself last. Returns its index afterwards.

        -1 where the next victim cannot lose its blocks now.
        """
        while True:
            if not self.takes_reservation(sequence):
                victim_index = self.choose_victim()
                if not self.can_preempt(self.explicit[victim_index]):
                    return -1
                victim = self.explicit.pop(victim_index)
                if victim_index < index:
                    index -= 1
                if victim in self._granted:
                    self.take_back_grant(victim)
                self.preempt(victim)
                if victim is sequence:
                    return index
            if self._blocks.allocate(sequence, num_tokens):
                return index

    def can_preempt(self, victim: Sequence) -> bool:
        """Whether a running sequence can lose its blocks now."""
        return True

    def take_back_grant(self, victim: Sequence) -> None:
        self._budget += self._granted.pop(victim) + self._drafter_rows
        self._encoder.give_back(victim)

    def _order_waiting(self) -> None:
        if self._order is not None:
            ordered = sorted(self.waiting, key=self._order)
            self.waiting.clear()
            self.waiting.extend(ordered)

    def is_full(self) -> bool:
        if len(self.explicit) + len(self.cohort.members) >= self._most_running or not self._admits:
            return True
        return self._limits_admission and not self.may_admit()

    def is_blocked(self) -> bool:
        """Whether no waiting sequence can join while nothing but the number of tokens changes."""
        if self._blocked is not None:
            head, num_waiting, num_changes = self._blocked
            waiting = self.waiting
            if waiting[0] is head and num_changes == self._free.num_changes and num_waiting == len(waiting):
                return True
        return self.is_full()

    def _note_blocked(self, sequence: Sequence, num_hits: int) -> None:
        """Note that the head of the queue cannot join, which is tried again when blocks have come back."""
        stays_first = self.takes_newcomers or len(self.waiting) == 1
        if self.has_cohort and stays_first and self.stays_without_blocks(sequence, num_hits):
            self._blocked = sequence, len(self.waiting), self._free.num_changes

    # --- the cohort, and newcomers to it ---

    def compose_cohort(self, at: Micros) -> bool:
        """Compose a step of the cohort and newcomers to it. False, and nothing changed, if others may compute, too."""
        cohort, step = self.cohort, self.next_step
        num_decodes, fills = cohort.num_decodes, cohort.num_filling > 0
        if num_decodes > self._max_decodes or not self._composes or (fills and len(self.in_flight) != self._depth - 1):
            return False
        if self._calendar is not None and num_decodes and not self._grant_changes(self._calendar):
            return False
        if self.waiting and not (self.is_full() if fills or self._blocked is None else self.is_blocked()):
            return self.compose_newcomers(at)
        num_blocks, free = cohort.needs[step % self._block_size], self._free
        if num_blocks > free.num_free or not num_decodes:
            return False
        if num_blocks:
            take_blocks = self._take_blocks
            take_blocks(num_blocks)
        if fills:
            self.fill_blocks(step, step + 1)
        self.in_flight.append((num_decodes, cohort.offset + num_decodes * step, NO_TOKENS, NO_NEWCOMERS))
        self.next_step = step + 1
        if step in cohort.ends:
            cohort.composed(step)
        return True

    def _grant_changes(self, calendar: "GroupCohort") -> bool:
        """Let members take and give back blocks for the next step. False, and nothing changed, if they may not fit."""
        return calendar.grant_changes(self.next_step, len(self.in_flight), self._depth, self._free.num_free)

    def compose_newcomers(self, at: Micros) -> bool:
        """Compose a step of the cohort and of waiting sequences whose whole prompts fit in it and are not shared.

        Newcomers join the cohort at once. The result is that of `schedule` at a third of its cost. False, and nothing
        changed, where only `schedule` decides correctly.
        """
        if not self.takes_newcomers:
            return False
        cohort, waiting, step = self.cohort, self.waiting, self.next_step
        num_blocks, num_decodes = cohort.needs[step % self._block_size], cohort.num_decodes
        newcomers: list[Sequence] = []
        is_blocked = self._choose_newcomers(newcomers, self._free.num_free - num_blocks)
        if not newcomers:
            return False
        engine_context, num_placeholders = self._context, self._newcomer_placeholders
        hold_prompt, take_blocks = self._hold_prompt, self._take_blocks
        if cohort.num_filling:
            self.fill_blocks(step, step + 1)
        self.in_flight.append((num_decodes, cohort.offset + num_decodes * step, NO_TOKENS, newcomers))
        self.next_step = step + 1
        if step in cohort.ends:
            cohort.composed(step)
        for sequence in newcomers:
            waiting.popleft()
            num_tokens = sequence.input_tokens
            self._num_admissions = number = self._num_admissions + 1
            sequence.running, sequence.running_number, sequence.scheduled_at = True, number, at
            sequence.num_computed_tokens = sequence.num_in_flight_tokens = num_tokens
            sequence.num_placeholders = num_placeholders
            num_blocks += hold_prompt(sequence, num_tokens)
            self._join(sequence, 1)
            if engine_context.reports_admissions:
                engine_context.events.append(Scheduled(at, sequence))
        take_blocks(num_blocks)
        if is_blocked:
            self._budget = self._token_budget - cohort.num_decodes
            self._note_blocked(waiting[0], 0)
        return True

    def _choose_newcomers(self, newcomers: list[Sequence], num_free: int) -> bool:
        """Add the first of the waiting sequences that join the next step, with so many free blocks. Returns whether
        the one after them finds too few.

        None are added if one of them needs the general rules of `schedule`.
        """
        waiting, cohort, size = self.waiting, self.cohort, self._block_size
        num_running, budget = len(cohort.members), self._token_budget - cohort.num_decodes
        num_seats = self._most_running - num_running
        longest, prompt_blocks = self._longest_joining, self._prompt_blocks
        if num_running:
            num_free -= self._watermark_blocks
        if len(waiting) > 1:
            self._order_waiting()
        elif not num_running and not self._threshold_when_alone:
            longest = self._limit - 2
        for sequence in waiting:
            if not num_seats or not budget:
                break
            num_tokens = sequence.input_tokens
            if num_tokens > budget or num_tokens > longest or not num_tokens or sequence.output_tokens < 2:
                newcomers.clear()
                break
            request = sequence.request
            num_blocks = -(-num_tokens // size) if prompt_blocks is None else prompt_blocks(sequence)
            is_resumed = sequence.num_preemptions or sequence.num_computed_tokens
            if is_resumed or sequence.num_shareable_blocks or request.media or num_blocks < 0 or request.external:
                newcomers.clear()
                break
            num_free -= num_blocks
            if num_free < 0:
                return True
            if not num_running:
                num_free -= self._watermark_blocks
                num_running = 1
            newcomers.append(sequence)
            num_seats -= 1
            budget -= num_tokens
        return False

    def _join(self, sequence: Sequence, num_tokens_due: int) -> bool:
        """Let a sequence that has or gets so many tokens before the next step join the cohort, if it gets others."""
        last_token, most = sequence.output_tokens, self._limit - sequence.input_tokens
        if last_token > most:
            last_token = most
        if last_token <= num_tokens_due:
            return False
        step = self.next_step
        # The scheduler sees the declared budget and the context window, not where a sequence stops.
        has_known_end = 0 < sequence.max_output_tokens <= last_token or last_token == most
        self.cohort.join(sequence, DecodeSpan(sequence, step, step + last_token - num_tokens_due - 1, has_known_end))
        if sequence.num_shareable_blocks:
            self.expect_fills(sequence)
        return True

    def dissolve_cohort(self) -> None:
        """Let all members leave the cohort and go on as sequences that are granted their tokens one by one."""
        members = list(self.cohort.members)
        for sequence in members:
            self.leave_cohort(sequence)
        self.explicit = sorted(self.explicit + members, key=running_number)

    def expect_fills(self, sequence: Sequence) -> None:
        """Expect a sequence that has just joined the cohort to fill blocks, if others may find them."""
        if self._names is not None and self._names.will_share(sequence):
            self.cohort.expect_fills(sequence, self._depth - 1)

    def fill_blocks(self, first_step: int, end: int) -> None:
        """Name the blocks of members that are full with steps from `first_step` on, before `end`.

        Cost: O(blocks named) and a look at each step.
        """
        cohort, names, num_unknown = self.cohort, self._names, self._depth - 1
        assert names is not None
        for step in range(first_step, end):
            for sequence in cohort.filling(step):
                span = sequence.span
                assert span is not None
                num_tokens = sequence.num_computed_tokens + step + 1 - span.first_step
                names.register(sequence, num_tokens - num_unknown)
                if not names.will_share(sequence):
                    cohort.expect_no_fills(sequence)

    def _fills_in_admission_order(self) -> bool:
        """Whether members fill blocks with the next step as if granted their tokens one by one, in order of admission.
        Of equal blocks a search finds the one that was filled first."""
        is_due = bool(self.cohort.fills[self.next_step % self._block_size])
        return len(self.in_flight) == self._depth - 1 and (not is_due or self._is_cohort_admitted_first())

    def _is_cohort_admitted_first(self) -> bool:
        """Whether all other sequences were admitted after those of the cohort."""
        return not self.explicit or self.explicit[0].running_number > self.cohort.latest_number

    def _num_equal_steps(self, most: int) -> int:
        """How many of the next `most` steps can be taken at once: the cohort alone computes and stays what it is."""
        cohort, step, depth = self.cohort, self.next_step, self._depth
        if cohort.decode_only_from > step - depth or self.explicit or self._must_update or len(self.in_flight) < depth:
            return 0
        if self.waiting and not (self.is_full() if cohort.num_filling else self.is_blocked()):
            return 0
        if self._calendar is not None and (first := self._calendar.next_change(step)) >= 0:
            most = min(most, 1 + first - step)
        if self._reports_steps and (not self._context.allows_multi_step or most > MAX_REPEATED_STEPS):
            most = MAX_REPEATED_STEPS if self._context.allows_multi_step else 0
        end, num_decodes = cohort.end_heap[0], cohort.num_decodes
        if most > (until_end := end - step + 2):
            # The last step may be composed without members whose end is foreseen, but not without all.
            most = until_end + 1 if depth > 1 and len(cohort.ends[end]) < num_decodes else until_end
        if most < MIN_STEPS_AT_ONCE:
            return 0
        if most > MAX_STEPS_AT_ONCE:
            most = MAX_STEPS_AT_ONCE
        num_free = self._free.num_free
        if num_decodes * (most // self._block_size + 1) <= num_free:  # at most a block more each
            return most
        return 1 + cohort.num_steps_within(step, most - 1, num_free)

    def _take_many_steps(
        self, at: Micros, last: Micros, most: int, instants: list[Micros]
    ) -> tuple[Micros, Micros, int, int]:
        """Take up to `most` steps from `at` on, each of which begins by `last`. Returns start and end of the last one,
        the context tokens of its sequences, and its index.

        Before them `instants` get into the log: the starts of steps and the end of the last of these, `at`.
        """
        if len(instants) > 1:
            self._context.steps.move_contiguous(instants)
        instants.clear()
        in_flight, cohort, step, depth = self.in_flight, self.cohort, self.next_step, self._depth
        num_decodes, context, _, _ = in_flight[0]
        count, started_at, ends_at = self._steps.take(at, last, num_decodes, context, most)
        if count == 1:
            return started_at, ends_at, context, step - depth
        last_step = step + count - 2
        if last_step - 1 in cohort.ends and count > 2:
            num_blocks = cohort.num_blocks_in(step, count - 2)
            cohort.composed(last_step - 1)
            num_blocks += cohort.needs[last_step % self._block_size]
        else:
            num_blocks = cohort.num_blocks_in(step, count - 1)
        if num_blocks:
            self._take_blocks(num_blocks)
        num_last = cohort.num_decodes
        last_context = cohort.offset + num_last * last_step
        in_flight[-1] = num_last, last_context, NO_TOKENS, NO_NEWCOMERS
        if depth == 2:  # with more there is no cohort
            last_context = context + num_decodes * (count - 1)
            in_flight[0] = num_decodes, last_context, NO_TOKENS, NO_NEWCOMERS
        self.next_step = last_step + 1
        if cohort.num_filling:
            self.fill_blocks(step, last_step + 1)
        if last_step in cohort.ends:
            cohort.composed(last_step)
        if self._reports_steps:
            first = step - depth
            ends = [self._context.steps.end(index) for index in range(first, first + count - 1)]
            self._context.events.append(StepsDone(ends, first, self._decoding_in(first)))
        return started_at, ends_at, last_context, last_step + 1 - depth
