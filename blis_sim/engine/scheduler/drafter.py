"""The drafter: tokens proposed for the next step, and those of them that the model accepts.

A drafted token is computed like any other. The number of accepted drafts is known when the step ends. Facts:
vllm/v1/core/sched/scheduler.py, `schedule` and `update_from_output`; async_scheduler.py, `_update_after_schedule`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.context import EngineContext
from blis_sim.engine.kv_cache.block_pool import SlotCache
from blis_sim.engine.scheduler.batch import ScheduledStep, ScheduledTokens, batch_shape
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.speculation import AcceptanceSampler
from blis_sim.engine.units import Micros


@dataclass(slots=True)
class DraftedTokens(ScheduledTokens):
    """Scheduled tokens of which the last `num_drafts` are drafts."""

    num_drafts: int
    num_proposed: int
    """Drafts that a drafter proposed. The others only fill the batch up to an even shape and are never accepted."""
    is_drafted_for: bool = False
    """Whether the step drafts for the sequence's next step, by the gates at its composition."""


class Drafter:
    """Schedules drafts for each sequence that samples, verifies them, and takes back what was computed in vain.

    `num_accepted` may replace the settings' acceptance: from a sequence and its number of drafts to those accepted.
    """

    __slots__ = (
        *("_acceptance", "_config", "_context", "_gates", "_has_grants", "_is_ahead", "_is_drafting", "_kv", "_limit"),
        *("_is_with_outputs", "_num_accepted", "_numbers", "_pads", "_speculation", "now", "rows", "width"),
    )

    def __init__(
        self, context: EngineContext, kv: SlotCache, num_accepted: Callable[[Sequence, int], int] | None = None
    ) -> None:
        config, speculation = context.config, context.config.speculation
        assert speculation is not None
        self._context, self._config, self._kv = context, config, kv
        self._limit = config.limit_tokens
        self._speculation = speculation
        self._gates = speculation.gates
        self._acceptance = AcceptanceSampler(speculation)
        self._num_accepted = num_accepted or self._draw
        self._numbers: dict[Sequence, int] = {}
        """Numbers of the requests present: draws do not depend on how requests are named."""
        self._is_ahead = config.async_scheduling
        """Whether steps count on drafts that are yet to be made, for they are composed before the step before ends."""
        self._is_with_outputs = config.pipeline is None and not config.async_scheduling
        """Whether drafts come with the outputs of a step."""
        self.rows = speculation.rows_per_request
        """Tokens of the budget that the drafter takes for each granted sequence."""
        self.width = 1 + speculation.num_tokens
        """Tokens of a sequence that decodes with all its drafts."""
        self._pads = self._has_grants = False
        self._is_drafting = False
        """Whether a request granted in the step being composed, or in the latest one, can use drafts made after it."""
        self.now: Micros = 0
        """Instant of the latest composition, or end of a step."""
        context.counters.num_accepted_per_position = [0] * speculation.num_tokens

    def enter(self, sequence: Sequence) -> None:
        """Number a request that begins to wait; one of a single token never drafts."""
        request = sequence.request
        drafts = request.max_output_tokens != 1
        self._numbers[sequence] = self._acceptance.next_number(request.input_tokens) if drafts else 0

    def leave(self, sequence: Sequence) -> None:
        """Forget a request that has ended."""
        del self._numbers[sequence]

    # --- the composition of a step ---

    def begin_composition(self, at: Micros) -> None:
        self.now = at
        self._is_drafting = not self._speculation.skips_unused_drafts

    def begin_admissions(self, has_grants: bool, has_prefill: bool) -> None:
        """Note whether running sequences have tokens in the step, and whether one of them computes its prompt."""
        self._pads, self._has_grants = not has_prefill, has_grants

    def fills_up(self, sequence: Sequence, start: int) -> bool:
        """Whether a newcomer that lacks one token after `start` decodes, among others that do it, at their width."""
        decodes = sequence.num_tokens - start == 1 and (self._has_grants or start > 0)
        return decodes and self._pads and start + self.width + 1 <= self._limit

    def note_grant(self, sequence: Sequence, num_tokens: int) -> None:
        """Note tokens that are granted to a sequence, or were for a while."""
        self._is_drafting = self._is_drafting or self._uses_drafts(sequence, num_tokens)

    def _uses_drafts(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether drafts made after a step with `num_tokens` of a sequence may be verified: another step follows."""
        if sequence.num_computed_tokens + num_tokens < sequence.num_tokens:
            return False
        request = sequence.request
        most = sequence.max_output_tokens or self._limit - request.input_tokens
        return sequence.num_output_tokens + 1 + (sequence.num_placeholders > 0) < most

    def num_drafts_of(self, sequence: Sequence, num_tokens: int) -> tuple[int, int]:
        """Return how many of the next `num_tokens` tokens of a sequence are drafts, and how many of these proposed."""
        known = sequence.num_tokens + sequence.num_placeholders
        num_drafts = max(0, sequence.num_computed_tokens + num_tokens - known)
        return num_drafts, min(num_drafts, sequence.num_drafts)

    def scheduled(self, tokens: ScheduledTokens, num_drafts: int, num_proposed: int, num_running: int) -> DraftedTokens:
        """Return the scheduled tokens of a sequence with their drafts, and expect drafts for its next step."""
        sequence, samples = tokens.sequence, tokens.samples
        sequence.num_drafts = 0
        num_next = self.next_drafts(sequence, num_running) if samples else 0
        if samples and self._is_ahead:
            sequence.num_placeholders += num_drafts
            sequence.num_drafts = num_next
        return DraftedTokens(
            sequence,
            tokens.num_tokens,
            tokens.context_tokens,
            tokens.known_tokens,
            samples,
            num_drafts,
            num_proposed,
            num_next > 0,
        )

    def next_drafts(self, sequence: Sequence, num_running: int) -> int:
        """Return how many tokens are drafted for the next step of a sequence."""
        gates = self._gates
        if gates is not None:
            num_left = (sequence.max_output_tokens or sequence.output_tokens) - sequence.num_output_tokens
            kv_usage = self._kv.num_used_blocks / self._kv.num_blocks
            utilization = max(kv_usage, num_running / self._config.max_num_seqs)
            if not gates.allows_drafts(sequence.priority, sequence.deadline_at - self.now, num_left, utilization):
                return 0
        return self._speculation.num_tokens

    def time_us(self, step: ScheduledStep, computed_us: Micros, shape: BatchShape) -> Micros:
        """Return the time that drafting takes after a step."""
        if self._gates is None:
            num_sampling = sum([tokens.samples for tokens in step[2]])
        else:
            num_sampling = sum([isinstance(tokens, DraftedTokens) and tokens.is_drafted_for for tokens in step[2]])
        return self._speculation.drafting_us(computed_us, shape, num_sampling)

    # --- the outputs of a step ---

    def take_in(self, step: ScheduledStep, num_running: int) -> None:
        """Take in the drafts that follow a step whose outputs are processed later."""
        for tokens in step[2]:
            sequence = tokens.sequence
            if sequence.outcome is None:
                drafts = self._is_drafting and not sequence.is_prefilling
                sequence.num_drafts = self.next_drafts(sequence, num_running) if drafts else 0

    def draft_after_outputs(self, sequence: Sequence, num_running: int) -> None:
        """Draft for a sequence whose outputs have been processed, where drafts come with them."""
        if self._is_with_outputs:
            sequence.num_drafts = self.next_drafts(sequence, num_running)

    def verify(self, tokens: ScheduledTokens, is_stale: bool) -> int:
        """Return how many drafts are accepted. Tokens computed for rejected drafts are taken back, unless a preemption
        has discarded them."""
        assert isinstance(tokens, DraftedTokens)
        if not tokens.num_drafts:
            return 0
        sequence = tokens.sequence
        accepted = self._num_accepted(sequence, tokens.num_proposed) if tokens.num_proposed else 0
        self._context.counters.count_drafts(tokens.num_drafts, accepted)
        rejected = tokens.num_drafts - accepted
        if not is_stale:
            sequence.num_computed_tokens -= rejected
            if sequence.num_placeholders > 0:
                sequence.num_placeholders -= rejected
        return accepted

    def _draw(self, sequence: Sequence, num_drafts: int) -> int:
        return self._acceptance.num_accepted(self._numbers[sequence], sequence.num_output_tokens, num_drafts)


def step_shape(step: ScheduledStep, recent_prompt_tokens: int) -> BatchShape:
    """Return the shape of a step for the latency model."""
    shape = draft_shape(step[2])
    return shape._replace(recent_prefill_tokens=recent_prompt_tokens if shape.prefill_tokens else 0)


def draft_shape(tokens: list[ScheduledTokens]) -> BatchShape:
    """The sums over a step's tokens: drafts cost like prefill tokens, after a context that their sequence reads anyway.

    Only the rest of a sequence's tokens makes a request of the batch, one that decodes or one that prefills.
    """
    drafts = squares = context_work = 0
    others: list[ScheduledTokens] = []
    for each in tokens:
        assert isinstance(each, DraftedTokens)
        count = min(each.num_drafts, each.num_tokens - 1)  # drafts may come before the token that they follow is known
        rest = each.num_tokens - count
        others.append(ScheduledTokens(each.sequence, rest, each.context_tokens, each.known_tokens, each.samples))
        drafts += count
        squares += count * count
        context_work += count * (each.context_tokens + rest)
    shape = batch_shape(others, 0, 0, 0)
    return shape._replace(
        prefill_tokens=shape.prefill_tokens + drafts,
        prefill_tokens_squared=shape.prefill_tokens_squared + squares,
        prefill_context_work=shape.prefill_context_work + context_work,
        prefill_prompt_work=shape.prefill_prompt_work + context_work,
        draft_tokens=drafts,
    )
