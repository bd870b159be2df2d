"""The worker of the published adaptive scheduler: newcomers compute their prompts one after another, then all decode.

In a pass over the batch, requests that pass the gates verify drafts first; then the others decode, in a forward pass of
their own. A sleep ends at the next tick of the host's timer, as in a program that waits with asyncio. Its prefix cache
holds whole prompts in a budget of tokens, of which the least recent goes. Running requests hold none of it, so its
utilisation is the share of stored prompts.
"""

import itertools
from collections import OrderedDict, deque
from collections.abc import KeysView

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import EventKind, Finished, Preempted, Scheduled, StepDone
from blis_sim.engine.request import Request
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.scheduler.policies import ORDERS
from blis_sim.engine.scheduler.vllm import new_urgent_requests
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.speculation import AcceptanceSampler
from blis_sim.engine.units import Micros


class PromptStore:
    """Prompts by the identity of their first block. A prompt that shares its start with none is not stored."""

    __slots__ = ("_found", "_prompts", "_used_tokens", "block_size", "hit_tokens", "num_blocks", "queried_tokens")

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size_tokens
        self.hit_tokens = 0
        self.queried_tokens = 0
        self._prompts: OrderedDict[object, tuple[int, list[object]]] = OrderedDict()
        """Tokens and blocks of each prompt, the least recently used one first."""
        self._found: dict[object, None] = {}
        self._used_tokens = 0

    @property
    def index(self) -> "PromptStore":
        """The content: this object."""
        return self

    def identities(self) -> KeysView[object]:
        """Return the identities of the blocks that can be found: a view, which changes with the cache."""
        return self._found.keys()

    def identities_now(self) -> frozenset[object]:
        """Return the identities of the blocks that can be found at this instant."""
        return frozenset(self._found)

    @property
    def num_used_blocks(self) -> int:
        return self._used_tokens // self.block_size

    @property
    def utilization(self) -> float:
        """The used share of the budget."""
        return self._used_tokens / (self.num_blocks * self.block_size)

    def look_up(self, request: Request) -> int:
        """Return the tokens of a prompt that are stored, and count the prompt as used and looked up."""
        self.queried_tokens += request.input_tokens
        num_shareable = min(request.blocks.num_shareable * self.block_size, request.input_tokens)
        key = request.blocks.identity(0) if num_shareable and request.reads_prefix_cache else None
        if key is None or key not in self._prompts:
            return 0
        self._prompts.move_to_end(key)
        num_tokens, _ = self._prompts[key]
        # Blocks are whole, and the rest of a prompt that is shared as far as it goes is in its last one.
        is_shared_whole = request.input_tokens - num_shareable < self.block_size
        found = min(num_tokens, request.input_tokens if is_shared_whole else num_shareable)
        self.hit_tokens += found
        return found

    def store(self, request: Request) -> None:
        """Store a prompt, at the cost of the least recently used ones. One above the budget is not stored."""
        blocks, num_tokens = request.blocks, request.input_tokens
        if not blocks.num_shareable or num_tokens > self.num_blocks * self.block_size:
            return
        key = blocks.identity(0)
        self._drop(key)
        while self._used_tokens + num_tokens > self.num_blocks * self.block_size:
            self._drop(next(iter(self._prompts)))
        num_blocks = min(blocks.num_shareable, num_tokens // self.block_size)
        identities = [blocks.identity(index) for index in range(num_blocks)]
        self._prompts[key] = num_tokens, identities
        self._used_tokens += num_tokens
        for identity in identities:
            self._found[identity] = None

    def _drop(self, key: object) -> None:
        entry = self._prompts.pop(key, None)
        if entry is not None:
            num_tokens, identities = entry
            self._used_tokens -= num_tokens
            for identity in identities:
                self._found.pop(identity, None)

    def check(self) -> None:
        """Raise AssertionError unless the tokens of all prompts add up to those in use."""
        used = sum(num_tokens for num_tokens, _ in self._prompts.values())
        assert used == self._used_tokens <= self.num_blocks * self.block_size

    def forget(self) -> bool:
        """Forget all prompts."""
        self._prompts.clear()
        self._found.clear()
        self._used_tokens = 0
        return True


_MIN_PASSES_AT_ONCE, _MAX_PASSES_AT_ONCE = 3, 256
"""Passes that are taken at once."""


class AdaptiveScheduler:
    """One worker with a number of places. Each prompt, verification and decode pass is a step of the log."""

    __slots__ = (
        *(
            "_acceptance",
            "_config",
            "_pause_state",
            "_context",
            "_is_pass_due",
            "_is_planned",
            "_prompt_computed",
            "_leaving",
        ),
        *("_limit", "_newcomers", "_number_of", "_numbers", "_order", "_pass", "_reports_steps"),
        *("_running", "_speculation", "_step", "_times_of_few", "_urgent", "_waiting", "kv"),
    )

    num_deferred = 0
    takes_only_empty_steps = False

    def __init__(self, context: EngineContext, reports_steps: bool) -> None:
        config = context.config
        self.kv = PromptStore(config.total_kv_blocks - 1, config.block_size_tokens)
        self._context = context
        self._config = config
        self._limit = config.limit_tokens
        self._reports_steps = reports_steps
        self._times_of_few = context.latency.few_decodes_timer()
        self._order = ORDERS[config.scheduler]
        self._urgent = new_urgent_requests(config)
        self._speculation = config.speculation
        self._acceptance = None if config.speculation is None else AcceptanceSampler(config.speculation)
        if config.speculation is not None:
            context.counters.num_accepted_per_position = [0] * config.speculation.num_tokens
        self._numbers = itertools.count()
        self._number_of: dict[Sequence, int] = {}
        self._waiting: list[Sequence] = []
        self._newcomers: deque[Sequence] = deque()
        """Requests with a place whose prompts are to be computed."""
        self._running: list[Sequence] = []
        """Requests that decode."""
        self._prompt_computed: set[Sequence] = set()
        """Waiting requests that need not compute their prompts again."""
        self._pass: deque[list[tuple[Sequence, int]]] = deque()
        """Forward passes still to come over the batch: requests and their tokens, 0 for one without drafts."""
        self._is_pass_due = False
        """Whether all decode once before more newcomers are admitted."""
        self._step: tuple[Micros, list[tuple[Sequence, int]], bool] | None = None
        """The executing step: its start, requests with their drafts, and whether it computes a prompt."""
        self._leaving: list[tuple[Sequence, Outcome]] = []
        self._pause_state = PauseState.NONE
        self._is_planned = False

    @property
    def num_running(self) -> int:
        return len(self._running) + len(self._newcomers)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_begun_steps(self) -> int:
        return len(self._context.steps)

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        sequence.deadline_at = self._config.urgency.deadline_of(sequence.request, sequence.arrived_at)
        self._number_of[sequence] = next(self._numbers)
        self._wait(sequence)
        self._plan(at)

    def remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        if sequence.running and self._step is not None:
            self._leaving.append((sequence, outcome))
            return
        self._take_out(sequence, outcome, at)
        self._plan(at)

    def step(self, at: Micros) -> None:
        self._is_planned = False
        if self._step is None:
            self._take_steps_from(at)

    def step_ended(self, report: object, at: Micros) -> None:
        self._end_step(at)
        self._take_steps_from(at)

    def set_pause_state(self, pause_state: PauseState, at: Micros) -> None:
        self._pause_state = pause_state
        self._plan(at)

    def preempt_all(self, at: Micros) -> None:
        victims = [*self._running, *self._newcomers]
        for victim in reversed(victims):
            self._lose_place(victim, at)
        self._running, self._newcomers = [], deque()
        self._prompt_computed.clear()
        self._pass.clear()
        self._plan(at)

    def _wait(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)
        if self._urgent is not None:
            self._urgent.watch(sequence)

    def _tick(self, at: Micros) -> Micros:
        """Return the instant at which a sleep until `at` ends."""
        timer_us = self._config.timer_us
        return -(-at // timer_us) * timer_us if timer_us else at

    def _plan(self, at: Micros) -> None:
        if self._step is None and not self._is_planned:
            self._is_planned = True
            self._context.queue.push(self._tick(at), EventKind.STEP)

    def _take_steps_from(self, at: Micros) -> None:
        """Take steps from `at` on, at which none executes, up to the first during which something else is due."""
        context = self._context
        while self._pause_state is not PauseState.EVERYTHING:
            if not (self._pass or self._newcomers or (self._is_pass_due and self._running)):
                self._admit(at)
            if self._newcomers:
                ends_at = self._begin_prompt(at)
            elif self._running and (ended_at := self._take_many_steps(at)) > at:
                at = ended_at
                continue
            elif self._pass or self._running:
                ends_at = self._begin_pass(at)
            else:
                break
            next_at = context.queue.next_at()
            if ends_at > context.until or (next_at is not None and next_at <= ends_at):
                context.queue.push(ends_at, EventKind.STEP_END)
                break
            at = ends_at
            self._end_step(at)
        context.clock = max(at, context.clock)

    def _admit(self, at: Micros) -> None:
        """Give places to waiting requests, those of less urgent requests, too."""
        if self._pause_state is not PauseState.NONE or not self._waiting:
            return
        if self._urgent is not None:
            self._urgent.rise(at)
        if self._order is not None and len(self._waiting) > 1:
            self._waiting.sort(key=self._order)
        num_free = self._config.max_num_seqs - self.num_running
        num_taken = self._take_places(at) if num_free <= 0 else num_free
        admitted, self._waiting = self._waiting[:num_taken], self._waiting[num_taken:]
        for sequence in admitted:
            sequence.running = True
            if sequence.scheduled_at is None:
                sequence.scheduled_at = at
            if sequence in self._prompt_computed:
                self._prompt_computed.discard(sequence)
                self._running.append(sequence)
            else:
                self._newcomers.append(sequence)
            if self._context.reports_admissions:
                self._context.events.append(Scheduled(at, sequence))

    def _take_places(self, at: Micros) -> int:
        """Let urgent requests take the places of others. Returns how many they took."""
        urgent = self._urgent
        if urgent is None or urgent.places is None:
            return 0
        num_taken = 0
        for candidate in list(self._waiting):
            index = urgent.places.find_victim(candidate, self._running)
            if index is None:
                break
            victim = self._running.pop(index)
            self._lose_place(victim, at)
            if urgent.keeps_progress:
                self._prompt_computed.add(victim)
            num_taken += 1
        return num_taken

    def _lose_place(self, victim: Sequence, at: Micros) -> None:
        victim.running = False
        victim.num_preemptions += 1
        self._wait(victim)
        self._context.counters.num_preemptions += 1
        self._context.events.append(Preempted(at, victim))

    def _begin(self, at: Micros, duration_us: Micros, sequences: list[tuple[Sequence, int]], is_prompt: bool) -> Micros:
        ends_at = self._tick(at + duration_us)
        self._context.steps.append(at, ends_at)
        self._step = at, sequences, is_prompt
        return ends_at

    def _begin_prompt(self, at: Micros) -> Micros:
        sequence = self._newcomers[0]
        request, num_active = sequence.request, self.num_running
        cached = self.kv.look_up(request)
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = cached
        new = max(0, request.input_tokens - cached)
        shape = BatchShape(num_active, new, new * new, cached, new * cached, new * request.input_tokens)
        self._context.last_shape = shape
        # A prompt that is found whole takes the time of one token's share, which is the shortest there is.
        duration_us = self._context.latency.step_time(shape if new else shape._replace(prefill_tokens=1))
        return self._begin(at, duration_us, [(sequence, 0)], is_prompt=True)

    def _begin_pass(self, at: Micros) -> Micros:
        if not self._pass:
            self._compose_passes(at)
        group = self._pass[0]
        context_tokens = sum([sequence.num_computed_tokens for sequence in self._running])
        shape = decodes(len(self._running), context_tokens)
        self._context.last_shape = shape
        duration_us = self._context.latency.step_time(shape)
        if group[0][1] and self._speculation is not None:
            at_verification = self._tick(at + self._speculation.set_drafting_us(duration_us))
            duration_us += at_verification - at
        return self._begin(at, duration_us, group, is_prompt=False)

    def _take_many_steps(self, at: Micros) -> Micros:
        """Take passes in which all decode one token, up to the one before a request ends or something else is due.

        Returns the end of the last one; `at` where passes must be taken one by one.
        """
        if self._pass or self._waiting or self._leaving or self._reports_steps or not self._is_without_drafts():
            return at
        context, most, context_tokens = self._context, self._limit, 0
        for sequence in self._running:
            request, num_tokens = sequence.request, sequence.num_output_tokens
            most = min(most, request.output_tokens - num_tokens, self._limit - request.input_tokens - num_tokens)
            if most < _MIN_PASSES_AT_ONCE:
                return at
            context_tokens += sequence.num_computed_tokens
        next_at = context.queue.next_at()
        last = context.until if next_at is None else min(context.until, next_at - 1)
        steps, tick = context.steps, self._tick
        first, num_passes = len(steps), 0
        for duration_us in self._decode_times(len(self._running), context_tokens, min(most - 1, _MAX_PASSES_AT_ONCE)):
            ends_at = tick(at + duration_us)
            if ends_at > last:
                break
            steps.append(at, ends_at)
            at = ends_at
            num_passes += 1
        if not num_passes:
            return at
        self._is_pass_due = False
        for sequence in self._running:
            sequence.add_token_steps(first, num_passes)
            sequence.num_output_tokens += num_passes
            sequence.num_computed_tokens += num_passes
        return at

    def _decode_times(self, sequences: int, context_tokens: int, steps: int) -> list[Micros]:
        times_of_few = self._times_of_few
        if times_of_few is not None:
            return times_of_few(sequences, context_tokens, steps)
        times: list[Micros] = self._context.latency.decode_times(decodes(sequences, context_tokens), steps).tolist()
        return times

    def _is_without_drafts(self) -> bool:
        """Whether no request gets drafts before another prompt is stored."""
        if self._speculation is None:
            return True
        gates = self._speculation.gates
        return gates is not None and gates.max_utilization is not None and self.kv.utilization >= gates.max_utilization

    def _compose_passes(self, at: Micros) -> None:
        """Split the batch: requests whose drafts are verified, and those that decode one token."""
        self._is_pass_due = False
        speculation = self._speculation
        if speculation is None:
            self._pass.append([(sequence, 0) for sequence in self._running])
            return
        drafted: list[tuple[Sequence, int]] = []
        others: list[tuple[Sequence, int]] = []
        gates, usage = speculation.gates, self.kv.utilization
        if self._is_without_drafts():
            others = [(sequence, 0) for sequence in self._running]
        else:
            for sequence in self._running:
                num_left = sequence.max_output_tokens - sequence.num_output_tokens
                slack_us = sequence.deadline_at - at
                if gates is None or gates.allows_drafts(sequence.priority, slack_us, num_left, usage):
                    drafted.append((sequence, speculation.num_tokens))
                else:
                    others.append((sequence, 0))
        self._pass.extend(group for group in (drafted, others) if group)

    def _end_step(self, at: Micros) -> None:
        assert self._step is not None
        started_at, sequences, is_prompt = self._step
        self._step = None
        context, index = self._context, len(self._context.steps) - 1
        for sequence, outcome in self._leaving:
            if sequence.outcome is None:
                self._take_out(sequence, outcome, at)
        self._leaving.clear()
        emitted: list[Sequence] = []
        if is_prompt:
            self._end_prompt(sequences[0][0], index, at, emitted)
        else:
            self._pass.popleft()
            for sequence, num_drafts in sequences:
                if sequence.running and sequence.outcome is None:
                    num_tokens = self._num_tokens(sequence, num_drafts, index) if num_drafts else 1
                    sequence.add_token_step(index)
                    sequence.num_output_tokens += num_tokens
                    sequence.num_computed_tokens += num_tokens
                    if num_tokens > 1:
                        sequence.add_extra_tokens(index, num_tokens - 1)
                    emitted.append(sequence)
        if self._reports_steps:
            context.events.append(StepDone(at, index, started_at, emitted))
        limit = self._limit
        for sequence in emitted:
            request, num_tokens = sequence.request, sequence.num_output_tokens
            if num_tokens >= request.output_tokens or num_tokens >= limit - request.input_tokens:
                self._finish(sequence, at)

    def _end_prompt(self, sequence: Sequence, index: int, at: Micros, emitted: list[Sequence]) -> None:
        if not sequence.running or sequence.outcome is not None:
            return
        self._newcomers.popleft()
        self._running.append(sequence)
        self._is_pass_due = True
        self.kv.store(sequence.request)
        if sequence.first_token_step is None:  # else it has been here before, and goes on
            sequence.num_computed_tokens = sequence.input_tokens
            sequence.first_token_step, sequence.first_token_at = index, at
            sequence.num_output_tokens = 1
            emitted.append(sequence)

    def _num_tokens(self, sequence: Sequence, num_drafts: int, index: int) -> int:
        """Return the number of tokens of a verification: the accepted drafts, or one."""
        assert self._acceptance is not None
        # Each step has draws of its own: a draft that missed may be drafted again, as no token takes its place.
        accepted = self._acceptance.num_accepted(self._number_of[sequence], index * num_drafts, num_drafts)
        self._context.counters.count_drafts(num_drafts, accepted)
        num_left = sequence.output_tokens - sequence.num_output_tokens
        return max(1, min(accepted, num_left))

    def _finish(self, sequence: Sequence, at: Micros) -> None:
        request = sequence.request
        is_complete = sequence.num_output_tokens >= request.output_tokens
        outcome = Outcome.COMPLETED if is_complete else Outcome.LENGTH_CAPPED
        sequence.num_output_tokens = min(sequence.num_output_tokens, request.output_tokens)
        self._running.remove(sequence)
        self._forget(sequence)
        self._context.counters.output_tokens += sequence.num_output_tokens
        self._context.end(sequence, outcome)
        self._context.events.append(Finished(at, sequence, outcome))

    def _take_out(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        for place in (self._waiting, self._newcomers, self._running):
            if sequence in place:
                place.remove(sequence)
        self._forget(sequence)
        self._context.end_and_report(sequence, outcome, at)

    def _forget(self, sequence: Sequence) -> None:
        sequence.running = False
        self._number_of.pop(sequence, None)
        self._prompt_computed.discard(sequence)
        if self._urgent is not None:
            self._urgent.forget(sequence)
