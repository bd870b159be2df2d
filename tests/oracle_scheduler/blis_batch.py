"""Tokens of each request in the next step: running requests first, then as many waiting ones as fit.

The rules and their order are BLIS's (sim/batch_formation.go), which follow vLLM's V1 scheduler: continuous batching
with chunked prefill under one token budget, and preemption by recomputation when KV blocks run out.
"""

from collections import defaultdict, deque

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.blis_cache import PromptCache
from blis_sim.engine.scheduler.policies import VICTIMS
from blis_sim.engine.sequence import Sequence


class BatchFormation:
    """Forms one step's batch from the running list and the wait queue, both of which it changes in place.

    After `form`, `new_tokens` has the tokens of each running sequence in this step.
    """

    __slots__ = (
        "_alone",
        "_budget",
        "_choose_victim",
        "_config",
        "_kv",
        "_num_admissions",
        "_running",
        "_waiting",
        "admits",
        "admitted",
        "holds_while_waiting",
        "new_tokens",
        "num_granted_tokens",
        "num_reservations_evicted",
        "preempted",
    )

    def __init__(
        self, config: EngineConfig, kv: PromptCache, running: list[Sequence], waiting: deque[Sequence]
    ) -> None:
        self._config = config
        self._kv = kv
        self._running = running
        self._waiting = waiting
        self._choose_victim = VICTIMS[config.preemption_policy]
        self._budget = 0
        self._num_admissions = 0
        self._alone: tuple[Sequence | None, int, int] = (None, 0, 0)
        """The latest that found no block while nothing else ran, all admissions until then, and the queue's length."""
        self.new_tokens: dict[Sequence, int] = {}
        """Tokens of each sequence in the step under way."""
        self.num_granted_tokens: defaultdict[Sequence, int] = defaultdict(int)
        """Tokens granted so far; they run ahead of those computed inside a step only."""
        self.admits = True
        """Whether waiting sequences may join."""
        self.admitted: list[Sequence] = []
        """Sequences that joined the batch in the latest `form`, in order."""
        self.preempted: list[Sequence] = []
        """Sequences evicted in the latest `form`, in order."""
        self.holds_while_waiting = False
        """Whether sequences that wait may hold blocks: prompts that another instance has computed."""
        self.num_reservations_evicted = 0
        """Sequences that lost such blocks so that another one could go on."""

    @property
    def num_running(self) -> int:
        return len(self._running)

    def form(self) -> None:
        """Grant tokens for one step."""
        self._budget = self._config.max_num_batched_tokens
        self.admitted = []
        self.preempted = []
        for sequence in self._running:
            self.new_tokens[sequence] = 0
        self._continue_running()
        if not self.preempted and self.admits:
            self._admit_waiting()

    def preempt_all(self) -> list[Sequence]:
        """Send all that runs back to the front of the queue, in order."""
        self.preempted = []
        while self._running:
            self._preempt(self._running.pop())
        return self.preempted

    def _continue_running(self) -> None:
        """Grant the next chunk or token to each running sequence, in order of admission."""
        index = 0
        running = self._running
        while index < len(running) and self._budget > 0:
            sequence = running[index]
            num_tokens = self._next_tokens(sequence)
            if num_tokens > 0:
                index = self._allocate_or_preempt(sequence, num_tokens, index)
                if not sequence.running:
                    return  # it was its own last victim: no request after it gets anything in this step
                self._grant(sequence, num_tokens)
            index += 1

    def _next_tokens(self, sequence: Sequence) -> int:
        """Return the tokens that a running sequence would compute next: a chunk of its prompt or one token; 0 at
        max_model_len."""
        computed = sequence.num_computed_tokens
        remaining = sequence.request.input_tokens - computed
        if remaining > 0:
            return self._chunk(remaining, computed)
        if sequence.request.output_tokens == 0:
            return 0
        max_model_len = self._config.max_model_len
        return 0 if max_model_len and computed + 1 > max_model_len - 1 else 1

    def _chunk(self, remaining: int, context: int) -> int:
        """A prompt's next chunk under the long-prefill threshold, the budget and max_model_len."""
        threshold = self._config.long_prefill_token_threshold
        if 0 < threshold < remaining:
            remaining = threshold
        remaining = min(remaining, self._budget)
        if self._config.max_model_len:
            remaining = min(remaining, max(self._config.max_model_len - 1 - context, 0))
        return remaining

    def _allocate_or_preempt(self, sequence: Sequence, num_tokens: int, index: int) -> int:
        """Find blocks for `sequence`, evicting others as needed, itself last. Returns its index afterwards."""
        is_prompt = sequence.num_computed_tokens < sequence.request.input_tokens
        while True:
            if is_prompt:
                allocated = self._kv.allocate_prompt(sequence, num_tokens)
            else:
                allocated = self._kv.allocate_token(sequence)
            if allocated:
                return index
            if len(self._running) == 1 and self._repeats(sequence):
                continue
            victim_index = self._choose_victim(self._running)
            victim = self._running.pop(victim_index)
            if victim_index < index:
                index -= 1
            self._preempt(victim)
            if victim is sequence:
                return index

    def _repeats(self, sequence: Sequence) -> bool:
        """Whether the only one that runs came as far as this before with nothing else admitted; then it gets blocks."""
        if not self.holds_while_waiting:
            return False
        if self._alone == (sequence, self._num_admissions - 1, len(self._waiting)) and self._evict_waiting(sequence):
            return True
        self._alone = (sequence, self._num_admissions, len(self._waiting))
        return False

    def _preempt(self, victim: Sequence) -> None:
        """Send a running sequence back to the front of the queue with nothing computed."""
        self._budget += self.new_tokens[victim]
        self._kv.evict(victim)
        victim.restart()
        self._restart(victim)
        self._waiting.appendleft(victim)
        self.preempted.append(victim)

    def _admit_waiting(self) -> list[int] | None:
        """Admit from the head of the queue until the batch is full, the budget is spent or blocks run out.

        One whose prompt has come computed from elsewhere, and holds blocks since, decodes at once. When it has lost
        them, it is admitted with one token of its prompt.

        Returns the blocks that the one which found too few has in the cache, None if blocks sufficed.
        """
        while self.num_running < self._config.max_num_seqs and self._waiting and self._budget > 0:
            sequence = self._waiting[0]
            if sequence.is_decode_subrequest:
                is_prompt = sequence.num_computed_tokens < sequence.request.input_tokens
                if not (self._kv.allocate_prompt(sequence, 1) if is_prompt else self._kv.allocate_token(sequence)):
                    if self.num_running == 0 and (self._evict_waiting(sequence) or self._evict_filling(sequence)):
                        continue
                    return None
                self._waiting.popleft()
                self._join(sequence)
                sequence.blocks_aligned = True
                self._grant(sequence, 1)
                continue
            cached = self._kv.cached_prefix(sequence)
            start = len(cached) * self._config.block_size_tokens
            num_tokens = self._chunk(sequence.request.input_tokens - start, start)
            if not self._kv.allocate_prompt(sequence, num_tokens, cached):
                if self.num_running == 0 and self._evict_waiting(sequence):
                    continue
                return cached
            self._waiting.popleft()
            self._join(sequence)
            sequence.blocks_aligned = num_tokens > 0 or start == 0
            self.num_granted_tokens[sequence] = start
            if sequence.num_preemptions == 0:
                sequence.num_cached_tokens = start
            self._grant(sequence, num_tokens)
        return None

    def _evict_waiting(self, needy: Sequence) -> bool:
        """Take the blocks of the last waiting sequence that holds any. False when only `needy` holds blocks.

        Without this the engine would spin for ever where nothing runs that could free a block for `needy`.
        """
        if not self.holds_while_waiting:
            return False
        holders = (each for each in reversed(self._waiting) if each.num_computed_tokens and each is not needy)
        victim = next(holders, None)
        if victim is None:
            return False
        self._evict_reservation(victim)
        return True

    def _evict_filling(self, sequence: Sequence) -> bool:
        """Take the blocks of a transferred prompt that fills the whole KV cache, so that it is computed here.

        A transferred prompt needs a slot for the token that follows, which a prompt computed here does not. False when
        the cache has room for that token.
        """
        num_blocks = -(-(sequence.num_stored_tokens + 1) // self._config.block_size_tokens)
        if num_blocks <= self._config.total_kv_blocks:
            return False
        self._evict_reservation(sequence)
        return True

    def _evict_reservation(self, victim: Sequence) -> None:
        self._kv.evict(victim)
        victim.restart()
        self._restart(victim)
        self.preempted.append(victim)
        self.num_reservations_evicted += 1

    def _join(self, sequence: Sequence) -> None:
        """`sequence` becomes the last of the running ones."""
        self._num_admissions += 1
        self._running.append(sequence)
        self.admitted.append(sequence)
        sequence.running = True

    def _grant(self, sequence: Sequence, num_tokens: int) -> None:
        self._budget -= num_tokens
        self.new_tokens[sequence] = num_tokens
        self.num_granted_tokens[sequence] += num_tokens

    def _restart(self, victim: Sequence) -> None:
        self.new_tokens[victim] = self.num_granted_tokens[victim] = 0
