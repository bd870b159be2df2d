"""Speculative decoding in the composition of vLLM's steps: drafts, computed along with the known tokens.

A drafted token is computed like any other. How many of them hold shows when the step ends.
Facts: vllm/v1/core/sched/scheduler.py `schedule`, async_scheduler.py `_update_after_schedule`.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.interface import SlotCache
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.speculation import Speculation
from tests.oracle_scheduler.vllm import batch_shape
from tests.oracle_scheduler.vllm_batch import Grant, VllmBatch


@dataclass(slots=True)
class DraftGrant(Grant):
    """A grant of which the last `num_drafts` tokens are drafts."""

    num_drafts: int
    num_proposed: int
    """Tokens that a drafter proposed. The others only fill the batch up to an even shape and are never accepted."""


class DraftBatch(VllmBatch):
    """Composes as its parent does, with drafts for each sequence that samples."""

    def __init__(self, config: EngineConfig, kv: SlotCache, speculation: Speculation) -> None:
        super().__init__(config, kv)
        self._speculation = speculation
        self._pads = False
        self._has_grants = False

    def _admit_waiting(self, defers: bool) -> None:
        self._pads = not self._had_prefill
        self._has_grants = bool(self._granted)
        super()._admit_waiting(defers)

    def _admission_tokens(self, sequence: Sequence, start: int) -> int:
        """A newcomer that lacks one token decodes, so among others that do it is filled up to their width."""
        width = 1 + self._speculation.num_tokens
        decodes = sequence.num_tokens - start == 1 and (self._has_grants or start > 0)
        if not decodes or not self._pads or start + width + 1 > self._limit:
            return super()._admission_tokens(sequence, start)
        if width > self._budget:
            return 0
        return min(width, self._threshold) if self._threshold else width

    def _advance(self, sequence: Sequence, num_tokens: int) -> DraftGrant:
        known = sequence.num_tokens + sequence.num_placeholders
        num_drafts = max(0, sequence.num_computed_tokens + num_tokens - known)
        num_proposed = min(num_drafts, sequence.num_drafts)
        grant = super()._advance(sequence, num_tokens)
        sequence.num_drafts = 0
        if grant.samples and self._config.async_scheduling:
            # The next step is composed before this one ends, so it counts on drafts that are yet to be made.
            sequence.num_placeholders += num_drafts
            sequence.num_drafts = self._speculation.num_tokens
        return DraftGrant(
            sequence, num_tokens, grant.context_tokens, grant.known_tokens, grant.samples, num_drafts, num_proposed
        )


def draft_shape(grants: SequenceOf[Grant]) -> BatchShape:
    """The sums over a step's grants: drafts cost like prefill tokens, after a context that their sequence reads anyway.

    Only the rest of a grant makes a request of the batch, one that decodes or one that prefills.
    """
    drafts = squares = context_work = 0
    others: list[Grant] = []
    for grant in grants:
        assert isinstance(grant, DraftGrant)
        count = grant.num_drafts
        rest = grant.num_tokens - count
        others.append(Grant(grant.sequence, rest, grant.context_tokens, grant.known_tokens, grant.samples))
        drafts += count
        squares += count * count
        context_work += count * (grant.context_tokens + rest)
    shape = batch_shape(others)
    return shape._replace(
        prefill_tokens=shape.prefill_tokens + drafts,
        prefill_tokens_squared=shape.prefill_tokens_squared + squares,
        prefill_context_work=shape.prefill_context_work + context_work,
        prefill_prompt_work=shape.prefill_prompt_work + context_work,
    )
