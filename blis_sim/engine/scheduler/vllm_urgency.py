"""vLLM's composition of steps with requests that become more urgent, and that lose their places to more urgent ones."""

from blis_sim.engine.context import EngineContext
from blis_sim.engine.kv_cache.interface import SlotCache
from blis_sim.engine.scheduler.policies import SlotPreemption
from blis_sim.engine.scheduler.scheduled_step import NO_DISPLACED
from blis_sim.engine.scheduler.vllm_schedule import VllmComposition
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from blis_sim.engine.urgency import Urgency


class UrgencyComposition(VllmComposition):
    """Raises waiting requests near their deadlines, and lets urgent ones take places when all are taken.

    A request that loses its place and keeps its progress waits with its KV blocks. It loses these, the least urgent
    request first, when a running or a more urgent request finds too few.
    """

    __slots__ = ("_keeps_progress", "_slot_preemption", "_urgency")

    def __init__(
        self, context: EngineContext, reports_steps: bool = True, has_cohort: bool = True, kv: SlotCache | None = None
    ) -> None:
        super().__init__(context, reports_steps, has_cohort, kv)
        config = context.config
        self._urgency = Urgency(config.urgency) if config.priority_policy == "slo-urgency" else None
        self._slot_preemption = (
            SlotPreemption(config.urgency.min_preempt_gap) if config.preemption_policy == "gap" else None
        )
        self._keeps_progress = config.urgency.keeps_progress
        self._has_deadlines = config.uses_deadlines or self._urgency is not None
        self.prepares = self._urgency is not None or self._slot_preemption is not None
        self.takes_newcomers = self._urgency is None  # which join by an order that may be old

    def note_deadline(self, sequence: Sequence) -> None:
        sequence.deadline_at = self._config.urgency.deadline_of(sequence.request, sequence.arrived_at)
        if self._urgency is not None:
            self._urgency.watch(sequence)

    def prepare(self, at: Micros) -> list[Sequence]:
        """Raise waiting requests, and let them take places. Returns the requests that lost theirs."""
        if self._urgency is not None:
            self._urgency.rise(at)
        places, waiting = self._slot_preemption, self.waiting
        if places is None or not waiting or not self._admits or self.num_running < self._config.max_num_seqs:
            return NO_DISPLACED
        self._order_waiting()
        displaced: list[Sequence] = []
        for candidate in list(waiting):
            if candidate.num_stale_tokens:
                continue
            index = places.find_victim(candidate, self.explicit)
            if index is None:
                break
            victim = self.explicit.pop(index)
            self._displace(victim)
            displaced.append(victim)
        return displaced

    def _displace(self, victim: Sequence) -> None:
        if not self._keeps_progress:
            self.preempt(victim)
            self.preempted.pop()  # reported apart from those that lack blocks, which end admissions
            return
        victim.running = False
        victim.num_preemptions += 1
        self.waiting_with_blocks.add(victim)
        self.waiting.appendleft(victim)
        if self._urgency is not None:
            self._urgency.watch(victim)

    def preempt(self, victim: Sequence) -> None:
        super().preempt(victim)
        if self._urgency is not None:
            self._urgency.watch(victim)

    def resume_first(self, passed_over: list[Sequence], adapters: set[str] | None) -> int:
        """Resume the first waiting request, or pass it over. Returns its tokens; -1 without enough blocks."""
        sequence = self.waiting[0]
        num_tokens = self._resume(sequence) if self._finds_slot(sequence.request.adapter, adapters) else 0
        if num_tokens < 0:
            return num_tokens
        self.waiting.popleft()
        if num_tokens == 0:
            passed_over.append(sequence)
            return 0
        self._had_prefill |= sequence.is_prefilling
        self._grant_newcomer(sequence, num_tokens, adapters)
        return num_tokens

    def _resume(self, sequence: Sequence) -> int:
        """Resume a request that kept its progress. Returns its tokens in this step.

        -1 if too few blocks are free; 0, and it waits on, while it cannot be granted a token.
        """
        num_tokens = self.next_tokens(sequence)
        if num_tokens <= 0:
            return 0
        while not self._blocks.allocate(sequence, num_tokens):
            if not self.takes_reservation(sequence):
                return -1
        self.waiting_with_blocks.discard(sequence)
        return num_tokens

    def takes_reservation(self, sequence: Sequence) -> bool:
        """Take the blocks of the least urgent request that waits with its progress, if there is one. It starts anew."""
        others = [each for each in self.waiting_with_blocks if each is not sequence]
        if not others:
            return False
        self.lose_progress(max(others, key=lambda each: (each.priority, each.deadline_at, each.running_number)))
        return True

    def lose_all_progress(self) -> None:
        """Let no waiting request hold KV blocks."""
        for sequence in list(self.waiting_with_blocks):
            self.lose_progress(sequence)

    def lose_progress(self, sequence: Sequence) -> None:
        """Take the KV blocks of a waiting request."""
        self.waiting_with_blocks.discard(sequence)
        self.discard_progress(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Forget a request that has ended."""
        if self._urgency is not None:
            self._urgency.forget(sequence)
        if self._slot_preemption is not None:
            self._slot_preemption.forget(sequence)
            self.waiting_with_blocks.discard(sequence)
